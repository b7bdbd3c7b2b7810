-- Reads what waits for a partition, in order, behind a number: pairs of number and event.
local log, partition, after = KEYS[1], ARGV[2], tonumber(ARGV[3])
local limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local queue = redis.call('HGET', log, 'q' .. partition)
if not queue then
  return {}
end
local answer, read = {}, 0
local at, last = math.max(unpack8('<I8', queue, 1), after + 1), unpack8('<I8', queue, 9)
-- Few at a time, since one may be large.
local step = 1
while at <= last and #answer < 2 * limit and read < bytes do
  local fields = {}
  for number = at, math.min(at + step, last + 1, at + limit - #answer / 2) - 1 do
    fields[#fields + 1] = 'n' .. partition .. ':' .. text(number)
  end
  local values = redis.call('HMGET', log, unpack(fields))
  for i = 1, #values do
    answer[#answer + 1] = text(at + i - 1)
    -- One that somebody has removed is no event either.
    answer[#answer + 1] = values[i] or ''
    read = read + #answer[#answer]
  end
  at = at + #values
  step = math.min(step * 2, 64)
end
return answer
