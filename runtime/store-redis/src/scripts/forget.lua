-- Removes an instance and releases all its leases.
local instances, instance_info, leases = KEYS[1], KEYS[2], KEYS[3]
local id, nonce = ARGV[2], ARGV[3]
local now, cursor, released_leases = text(time_now()), '0', {}
repeat
  local scanned = redis.call('HSCAN', leases, cursor, 'COUNT', ARGUMENT_LIMIT)
  cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local epoch, holder = string.match(scanned[2][i + 1], LEASE)
    if holder == id then
      released_leases[#released_leases + 1] = scanned[2][i]
      released_leases[#released_leases + 1] = epoch .. ' ' .. NOBODY .. ' ' .. now
    end
  end
until cursor == '0'
redis.call('HDEL', instance_info, id, 'r' .. id, 'l' .. id)
with_all('HSET', leases, released_leases)
redis.call('ZREM', instances, id)
redis.call('HSET', instance_info, 'generation', nonce)
