-- A part of the jobs, as `HSCAN` gives them: where to go on, the time, and for each job key,
-- record without its state, and the length of that.
local data, cursor, pattern, count = KEYS[1], ARGV[2], ARGV[3], ARGV[4]
local scanned = redis.call('HSCAN', data, cursor, 'COUNT', count, 'MATCH', pattern)
local rows = {}
for i = 1, #scanned[2], 2 do
  local key, record, size = sub(scanned[2][i], 2), scanned[2][i + 1], 0
  if is_sound(record) and has(byte(record, 2), LARGE) then
    size = redis.call('HSTRLEN', data, 's' .. key)
  elseif is_sound(record) then
    size = math.max(#record + 1 - state_at(record), 0)
    record = sub(record, 1, state_at(record) - 1)
  else
    -- Enough to say that it is none.
    record = sub(record, 1, SHORTEST)
  end
  rows[#rows + 1] = {key, record, size}
end
return {scanned[1], text(time_now()), rows}
