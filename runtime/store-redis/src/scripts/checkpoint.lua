-- Writes a mark, if the fence of the partition in this shard has the caller's claim. Returns 1 if the fence has this
-- claim, otherwise 0.
local data, marks, partition, claim = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local fence = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim then
  return 0
end
redis.call('HSET', marks, ARGV[4], ARGV[5])
return 1
