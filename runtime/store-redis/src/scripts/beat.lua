-- Writes the heartbeat of an instance, and removes instances whose heartbeat is too old. Answers how many
-- ms the heartbeat is valid, and the generation of the table.
local instances, about = KEYS[1], KEYS[2]
local id, words, report = ARGV[2], ARGV[3], ARGV[4]
local lease, nonce = tonumber(ARGV[5]), ARGV[6]
-- Within this time every living instance writes its heartbeat again, in ms.
local MOMENT = 3000
-- No configuration allows a longer lease, in ms.
local LONGEST_LEASE = 600000
local now = time_now()
local till = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', about, 'generation', id)
local generation = generation_of(found[1])
-- Other instances may have a table without this one.
local changed = found[2] ~= words or generation == '0' or till <= now

-- Where all heartbeats are old, the server was unreachable, or its clock has jumped: the living instances
-- get a moment to write theirs again.
local newest = redis.call('ZRANGE', instances, -1, -1, 'WITHSCORES')
local all_silent = newest[1] and tonumber(newest[2]) < now + lease / 2
local moment = now + math.min(lease, MOMENT)
local to = all_silent and moment or now
-- Instances that had died before get no such moment.
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
-- Heartbeats beyond their lease come from before the clock went back.
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
