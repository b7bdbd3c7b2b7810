-- A part of the jobs, as `HSCAN` gives them: where to go on, the time, and for each job key,
-- record and the length of its state.
local jobs, states, cursor, pattern, count = KEYS[1], KEYS[2], ARGV[4], ARGV[5], ARGV[6]
need('hash', jobs)
need('hash', states)
local scanned
if pattern == '' then
  scanned = redis.call('HSCAN', jobs, cursor, 'COUNT', count)
else
  scanned = redis.call('HSCAN', jobs, cursor, 'COUNT', count, 'MATCH', pattern)
end
local rows = {}
for i = 1, #scanned[2], 2 do
  local key = scanned[2][i]
  rows[#rows + 1] = {key, scanned[2][i + 1], redis.call('HSTRLEN', states, key)}
end
return {scanned[1], string.format('%.0f', time_now()), rows}
