-- Writes the heartbeat of an instance, and removes instances whose heartbeat has expired. Returns the time in ms until
-- the new heartbeat expires, and the generation of the table of members, leases and rollouts.
local instances, about = KEYS[1], KEYS[2]
local id, words, report = ARGV[2], ARGV[3], ARGV[4]
local lease, nonce = tonumber(ARGV[5]), ARGV[6]
-- A time, in ms, within which every running instance writes its heartbeat again.
local MOMENT = 3000
-- The longest lease that a configuration allows, in ms.
local LONGEST_LEASE = 600000
local now = time_now()
local till = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', about, 'generation', id)
local generation = generation_of(found[1])
-- True if the table must get a new generation, because the table that other instances have read may lack this instance,
-- or may be out of date.
local changed = found[2] ~= words or generation == '0' or till <= now

-- If all heartbeats are old, the server was unreachable, or its clock has jumped. The running instances then get
-- additional time, so that they can write their heartbeats again.
local newest = redis.call('ZRANGE', instances, -1, -1, 'WITHSCORES')
local all_silent = newest[1] and tonumber(newest[2]) < now + lease / 2
local moment = now + math.min(lease, MOMENT)
local to = all_silent and moment or now
-- An instance gets no additional time if its heartbeat expires at least half a lease before the newest heartbeat: it
-- has probably ended earlier.
local living = all_silent and tonumber(newest[2]) - lease / 2 or now
local silent = redis.call('ZRANGEBYSCORE', instances, '-inf', text(to), 'WITHSCORES', 'LIMIT', 0, CHUNK)
for i = 1, #silent, 2 do
  local other, theirs = silent[i], tonumber(silent[i + 1])
  if other ~= id and theirs > living then
    redis.call('ZADD', instances, text(moment), other)
    changed = changed or theirs <= now
  elseif other ~= id then
    redis.call('HDEL', about, other, 'r' .. other, 'l' .. other)
    redis.call('ZREM', instances, other)
    changed = true
  end
end
-- If a heartbeat expires later than its lease allows, the clock has gone back since it was written. Correct the expiry
-- time.
local latest = '(' .. text(now + 2 * lease)
local beyond = redis.call('ZRANGEBYSCORE', instances, latest, '+inf', 'WITHSCORES', 'LIMIT', 0, CHUNK)
for i = 1, #beyond, 2 do
  local theirs = tonumber(redis.call('HGET', about, 'l' .. beyond[i]) or '')
  if not theirs or theirs > LONGEST_LEASE then
    theirs = lease
  end
  if tonumber(beyond[i + 1]) > now + 2 * theirs then
    redis.call('ZADD', instances, text(now + theirs), beyond[i])
  end
end
if till < now + lease * 9 / 10 or till > now + lease then
  till = now + lease
  redis.call('ZADD', instances, text(till), id)
end
if report ~= '' then
  redis.call('HSET', about, 'r' .. id, report)
end
if changed then
  generation = nonce
  redis.call('HSET', about, id, words, 'l' .. id, text(lease), 'generation', generation)
end
return {till - now, generation}
