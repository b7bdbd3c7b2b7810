-- Removes the entries of the outbox up to and including a commit. If the fence has another claim, removes nothing and
-- returns an empty table. Otherwise returns whether entries are left to remove, and the number of the last commit of
-- the shard. One call removes a limited number of entries, so that it does not block the server for long.
local data, partition, claim, through = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local fence, last, first = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim then
  return {}
end
through = math.min(through, last)
local left = math.max(first, math.min(through + 1, first + MANY))
for from = first, left - 1, CHUNK do
  local gone = {}
  for number = from, math.min(from + CHUNK, left) - 1 do
    gone[#gone + 1] = 'o' .. partition .. ':' .. text(number)
  end
  redis.call('HDEL', data, unpack(gone))
end
-- Skip the following commits without messages, so that a read of the outbox need not examine them again.
local over = 0
while left > through and left <= last and over < CHUNK
  and redis.call('HEXISTS', data, 'o' .. partition .. ':' .. text(left)) == 0 do
  left, over = left + 1, over + 1
end
if left ~= first then
  redis.call('HSET', data, 'q' .. partition, text(left))
end
return {left <= through and 1 or 0, text(last)}
