-- Returns the generation of the table, all members, all leases and all rollouts. Each member has the remaining ms of
-- its membership, its information and its report.
local instances, about, leases, versions = unpack(KEYS)
local now = time_now()
local members = {}
local heard = redis.call('ZRANGEBYSCORE', instances, '(' .. text(now), '+inf', 'WITHSCORES')
for i = 1, #heard, 2 do
  local found = redis.call('HMGET', about, heard[i], 'r' .. heard[i])
  members[#members + 1] = {heard[i], heard[i + 1] - now, found[1], found[2]}
end
local function all_of(hash, scan)
  local all, cursor = {}, '0'
  repeat
    local scanned = scan('HSCAN', hash, cursor, 'COUNT', CHUNK)
    if scanned.err then
      return {}
    end
    cursor = scanned[1]
    for i = 1, #scanned[2] do
      all[#all + 1] = scanned[2][i]
    end
  until cursor == '0'
  return all
end
local generation = generation_of(redis.call('HGET', about, 'generation'))
-- If the key of the rollouts has another type of value, returns no rollouts: leases do not depend on rollouts.
return {generation, members, all_of(leases, redis.call), all_of(versions, redis.pcall)}
