-- Removes the entries of a partition's outbox in this shard, up to and including the commit `through`. If the fence
-- does not have the caller's claim, removes nothing and returns an empty table. Otherwise returns two numbers. The
-- first number is 1 if entries remain and the caller must repeat the call, otherwise 0. The second number is the number
-- of the last commit of the shard. One call removes a limited number of entries, so that it does not block the server
-- for long.
local data, partition, claim, through = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local fence, last, first = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim then
  return {}
end
through = math.min(through, last)
local left = math.max(first, math.min(through + 1, first + ENTRY_LIMIT))
for from = first, left - 1, ARGUMENT_LIMIT do
  local fields = {}
  for number = from, math.min(from + ARGUMENT_LIMIT, left) - 1 do
    fields[#fields + 1] = 'o' .. partition .. ':' .. text(number)
  end
  redis.call('HDEL', data, unpack(fields))
end
-- Skip the commits that follow and have no outbox entry, so that later reads of the outbox need not examine them.
local skipped = 0
while left > through and left <= last and skipped < ARGUMENT_LIMIT
  and redis.call('HEXISTS', data, 'o' .. partition .. ':' .. text(left)) == 0 do
  left, skipped = left + 1, skipped + 1
end
if left ~= first then
  redis.call('HSET', data, 'q' .. partition, text(left))
end
return {left <= through and 1 or 0, text(last)}
