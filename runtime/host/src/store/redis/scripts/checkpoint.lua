-- Puts a mark where the fence has this claim.
local data, marks, partition, claim = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local fence = read_fence(data, partition)
if fence and claim_of(fence) == claim then
  redis.call('HSET', marks, ARGV[4], ARGV[5])
end
return 1
