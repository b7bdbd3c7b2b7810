-- Removes from the outbox all up to a commit, unless the fence has another claim.
local data, partition, claim, through = KEYS[1], ARGV[2], ARGV[3], tonumber(ARGV[4])
local found = redis.call('HMGET', data, 'f' .. partition, 'q' .. partition)
local fence, first = found[1], tonumber(found[2] or 1)
if not fence or not is_fence(fence) or sub(fence, 2, 17) ~= claim then
  return 0
end
local last = unpack8('<I8', fence, 18)
local left = math.max(first, math.min(through, last) + 1)
local gone = {}
for number = first, left - 1 do
  gone[#gone + 1] = 'o' .. partition .. ':' .. text(number)
end
with_all('HDEL', data, gone)
-- Over commits that had nothing to publish, so that a read of the outbox need not look for them.
local over = 0
while left <= last and over < CHUNK
  and redis.call('HEXISTS', data, 'o' .. partition .. ':' .. text(left)) == 0 do
  left, over = left + 1, over + 1
end
if left ~= first then
  redis.call('HSET', data, 'q' .. partition, text(left))
end
return left - first
