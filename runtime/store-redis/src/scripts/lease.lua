-- Grants the lease of a partition to a member, unless another member holds the lease. The new epoch is higher than the
-- epoch of the last lease, and higher than `floor`, the highest epoch in the partition's fences. Returns 1 and the
-- epoch if the script grants the lease. Returns 0 and the holder if another member holds the lease. Returns two false
-- values if the requester is not a member.
local leases, instances, instance_info = KEYS[1], KEYS[2], KEYS[3]
local field, id, floor, nonce = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = time_now()
local last, holder = read_lease(leases, field)
local function is_member(instance)
  local expires = redis.call('ZSCORE', instances, instance)
  return expires and tonumber(expires) > now
end
if not is_member(id) then
  return {false, false}
end
if holder ~= id and holder ~= NOBODY and is_member(holder) then
  return {0, holder}
end
must_be_hash(instance_info)
local epoch = math.max(last, floor) + 1
if epoch >= EXACT then
  corrupt_field(field, leases, 'lease with a valid epoch: remove it')
end
epoch = text(epoch)
redis.call('HSET', leases, field, epoch .. ' ' .. id .. ' ' .. text(now))
redis.call('HSET', instance_info, 'generation', nonce)
return {1, epoch}
