-- Removes what waits for a partition up to a number, unless the fence has another claim. Answers 1 if
-- there is more to do.
local data, log, partition, claim, through = KEYS[1], KEYS[2], ARGV[2], ARGV[3], tonumber(ARGV[4])
local fence = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim then
  return 0
end
local first, last = read_queue(log, partition)
through = math.min(through, last)
if through < first then
  return 0
end
local to = math.min(through, first + MANY - 1)
local waits = tonumber(redis.call('HGET', log, 'w') or '0') or 0
-- First what says what is there: what is removed afterwards nobody speaks of.
redis.call('HSET', log, 'q' .. partition, pack('<I8I8', to + 1, last), 'w', text(math.max(waits - (to + 1 - first), 0)))
for from = first, to, CHUNK do
  local gone = {}
  for number = from, math.min(from + CHUNK - 1, to) do
    gone[#gone + 1] = 'n' .. partition .. ':' .. text(number)
  end
  redis.call('HDEL', log, unpack(gone))
end
return to < through and 1 or 0
