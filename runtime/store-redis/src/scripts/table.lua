-- Returns the membership table: its generation, all members, all leases and all rollouts. A member consists of its id,
-- the remaining time of its membership in ms, its information and its report.
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
-- If the Redis key of the rollouts has the wrong type, return no rollouts, because members and leases do not depend on
-- rollouts.
return {generation, members, all_of(leases, redis.call), all_of(versions, redis.pcall)}
