-- Writes the heartbeat of an instance (the time when its membership expires), and removes the instances whose heartbeat
-- has expired. Does not move the expiry time of the instance if the remaining time is between nine tenths of the lease
-- and the whole lease. Returns the time in ms until the heartbeat of the instance expires, and the version of the
-- membership table (members, leases and rollouts).
local instances, instance_info = KEYS[1], KEYS[2]
local id, info, report = ARGV[2], ARGV[3], ARGV[4]
local lease, nonce = tonumber(ARGV[5]), ARGV[6]
-- Every running instance writes its next heartbeat within this time, in ms.
local HEARTBEAT_GRACE_MS = 3000
-- The longest lease that a configuration allows, in ms.
local LEASE_LIMIT_MS = 600000
local now = time_now()
local expires = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', instance_info, 'generation', id)
local membership_version = membership_version_of(found[1])
-- True if the table must get a new version, because the copies that other instances have read may lack this instance,
-- or may be out of date.
local changed = found[2] ~= info or membership_version == '0' or expires <= now

-- If the newest heartbeat has expired, or expires in less than half a lease, then the server was unreachable, its clock
-- has jumped, or no instance was running. Instances that may still be running then get additional time, so that they
-- can write their heartbeats again.
local newest = redis.call('ZRANGE', instances, -1, -1, 'WITHSCORES')
local all_silent = newest[1] and tonumber(newest[2]) < now + lease / 2
local grace_end = now + math.min(lease, HEARTBEAT_GRACE_MS)
local to = all_silent and grace_end or now
-- If the heartbeat of an instance expires at least half a lease earlier than the newest heartbeat, the instance has
-- probably ended, and gets no additional time.
local living = all_silent and tonumber(newest[2]) - lease / 2 or now
local silent = redis.call('ZRANGEBYSCORE', instances, '-inf', text(to), 'WITHSCORES', 'LIMIT', 0, ARGUMENT_LIMIT)
for i = 1, #silent, 2 do
  local other, other_expires = silent[i], tonumber(silent[i + 1])
  if other ~= id and other_expires > living then
    redis.call('ZADD', instances, text(grace_end), other)
    changed = changed or other_expires <= now
  elseif other ~= id then
    redis.call('HDEL', instance_info, other, 'r' .. other, 'l' .. other)
    redis.call('ZREM', instances, other)
    changed = true
  end
end
-- If a heartbeat is valid for longer than two leases, the server's clock has gone back since the heartbeat was written.
-- Correct the expiry time.
local latest = '(' .. text(now + 2 * lease)
local late_entries = redis.call('ZRANGEBYSCORE', instances, latest, '+inf', 'WITHSCORES', 'LIMIT', 0, ARGUMENT_LIMIT)
for i = 1, #late_entries, 2 do
  local other_lease = tonumber(redis.call('HGET', instance_info, 'l' .. late_entries[i]) or '')
  if not other_lease or other_lease > LEASE_LIMIT_MS then
    other_lease = lease
  end
  if tonumber(late_entries[i + 1]) > now + 2 * other_lease then
    redis.call('ZADD', instances, text(now + other_lease), late_entries[i])
  end
end
if expires < now + lease * 9 / 10 or expires > now + lease then
  expires = now + lease
  redis.call('ZADD', instances, text(expires), id)
end
if report ~= '' then
  redis.call('HSET', instance_info, 'r' .. id, report)
end
if changed then
  membership_version = nonce
  redis.call('HSET', instance_info, id, info, 'l' .. id, text(lease), 'generation', membership_version)
end
return {expires - now, membership_version}
