-- Gives a partition to an instance, with an epoch above all given before and above what its fences
-- hold, unless another instance that is heard of has it. Answers 1 and the epoch, or 0 and who has it.
local leases, instances, about = KEYS[1], KEYS[2], KEYS[3]
local field, id, floor, nonce = ARGV[2], ARGV[3], tonumber(ARGV[4]), ARGV[5]
local now = time_now()
local last, holder = read_lease(leases, field)
if holder ~= id and holder ~= NOBODY then
  local till = redis.call('ZSCORE', instances, holder)
  if till and tonumber(till) > now then
    return {0, holder}
  end
end
redis.call('HEXISTS', about, 'generation')
local epoch = text(math.max(last, floor) + 1)
redis.call('HSET', leases, field, epoch .. ' ' .. id .. ' ' .. text(now))
redis.call('HSET', about, 'generation', nonce)
return {1, epoch}
