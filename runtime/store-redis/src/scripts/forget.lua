-- Removes an instance and releases all its leases.
local instances, about, leases = KEYS[1], KEYS[2], KEYS[3]
local id, nonce = ARGV[2], ARGV[3]
local now, cursor, given = text(time_now()), '0', {}
repeat
  local scanned = redis.call('HSCAN', leases, cursor, 'COUNT', CHUNK)
  cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local epoch, holder = string.match(scanned[2][i + 1], LEASE)
    if holder == id then
      given[#given + 1] = scanned[2][i]
      given[#given + 1] = epoch .. ' ' .. NOBODY .. ' ' .. now
    end
  end
until cursor == '0'
redis.call('HDEL', about, id, 'r' .. id, 'l' .. id)
with_all('HSET', leases, given)
redis.call('ZREM', instances, id)
redis.call('HSET', about, 'generation', nonce)
