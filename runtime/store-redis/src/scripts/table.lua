-- Returns the membership table: its version, all members, all leases and all rollouts. A member consists of its id,
-- the remaining time of its membership in ms, its information and its report.
local instances, instance_info, leases, versions = unpack(KEYS)
local now = time_now()
local members = {}
local heartbeats = redis.call('ZRANGEBYSCORE', instances, '(' .. text(now), '+inf', 'WITHSCORES')
for i = 1, #heartbeats, 2 do
  local found = redis.call('HMGET', instance_info, heartbeats[i], 'r' .. heartbeats[i])
  members[#members + 1] = {heartbeats[i], heartbeats[i + 1] - now, found[1], found[2]}
end
-- Returns all fields and values of a hash; an empty table if `scan` returns an error.
local function all_of(hash, scan)
  local all, cursor = {}, '0'
  repeat
    local scanned = scan('HSCAN', hash, cursor, 'COUNT', ARGUMENT_LIMIT)
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
local membership_version = membership_version_of(redis.call('HGET', instance_info, 'generation'))
-- If the Redis key of the rollouts has the wrong type, return no rollouts, because members and leases do not depend on
-- rollouts.
return {membership_version, members, all_of(leases, redis.call), all_of(versions, redis.pcall)}
