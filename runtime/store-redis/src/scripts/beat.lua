-- Notes that an instance runs, and forgets those that were not heard of in time. Answers how many ms
-- it is heard of from now on, and the generation of the table.
local instances, about = KEYS[1], KEYS[2]
local id, words, report = ARGV[2], ARGV[3], ARGV[4]
local lease, nonce = tonumber(ARGV[5]), ARGV[6]
-- In which all who live beat again, in ms.
local MOMENT = 3000
-- No configuration allows a longer lease, in ms.
local LONGEST = 600000
local now = time_now()
local till = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', about, 'generation', id)
local generation = generation_of(found[1])
-- Others may have a table without it.
local changed = found[2] ~= words or generation == '0' or till <= now

-- Where nobody was heard of for long, it was the server that could not be reached, or its time has
-- jumped: those who live are heard of in a moment.
local newest = redis.call('ZRANGE', instances, -1, -1, 'WITHSCORES')
local all_silent = newest[1] and tonumber(newest[2]) < now + lease / 2
local moment = now + math.min(lease, MOMENT)
local to = all_silent and moment or now
-- Those who had died before are not of them.
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
-- Those beyond their lease are of a time that has gone back.
local beyond = redis.call('ZRANGEBYSCORE', instances, '(' .. text(now + 2 * lease), '+inf', 'WITHSCORES', 'LIMIT', 0, CHUNK)
for i = 1, #beyond, 2 do
  local theirs = tonumber(redis.call('HGET', about, 'l' .. beyond[i]) or '')
  if not theirs or theirs > LONGEST then
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
