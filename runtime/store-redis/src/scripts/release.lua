-- Releases the lease of a partition, if the instance `id` still holds the lease under this epoch.
local leases, instance_info = KEYS[1], KEYS[2]
local field, id, epoch, nonce = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local last, holder = read_lease(leases, field)
if holder == id and text(last) == epoch then
  must_be_hash(instance_info)
  redis.call('HSET', leases, field, epoch .. ' ' .. NOBODY .. ' ' .. text(time_now()))
  redis.call('HSET', instance_info, 'generation', nonce)
end
