-- Reads what waits for a partition, in order, behind a number: pairs of number and event.
local log, partition, after = KEYS[1], ARGV[2], tonumber(ARGV[3])
local limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local first, last = read_queue(log, partition)
local answer, read = {}, 0
local at = math.max(first, after + 1)
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
  -- As many as are about as large as those before and may still be read.
  step = math.max(1, math.min(step * 2, 64, math.floor((bytes - read) * #answer / (2 * read + 1))))
end
return answer
