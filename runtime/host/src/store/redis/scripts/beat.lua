-- Notes that an instance runs, and forgets those that were not heard of in time. Answers how many ms
-- it is heard of from now on, and the generation of the table.
local instances, about = KEYS[1], KEYS[2]
local id, words, report = ARGV[2], ARGV[3], ARGV[4]
local lease, nonce = tonumber(ARGV[5]), ARGV[6]
-- In which all who live beat again, in ms.
local MOMENT = 3000
local now = time_now()
local till = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', about, 'generation', id)
local generation, changed = found[1] or '0', found[2] ~= words

-- Where nobody was heard of for long, it was the server that could not be reached, or its time has
-- jumped: those who live are heard of in a moment.
local newest = redis.call('ZRANGE', instances, -1, -1, 'WITHSCORES')
local all_silent = newest[1] and tonumber(newest[2]) < now + lease / 2
local moment = now + math.min(lease, MOMENT)
local to = all_silent and moment or now
for _, other in ipairs(redis.call('ZRANGEBYSCORE', instances, '-inf', text(to), 'LIMIT', 0, CHUNK)) do
  if other ~= id and all_silent then
    redis.call('ZADD', instances, text(moment), other)
  elseif other ~= id then
    redis.call('HDEL', about, other, 'r' .. other, 'l' .. other)
    redis.call('ZREM', instances, other)
    changed = true
  end
end
-- Those beyond their lease are of a time that has gone back.
local beyond = redis.call('ZRANGEBYSCORE', instances, '(' .. text(now + 2 * lease), '+inf', 'WITHSCORES', 'LIMIT', 0, CHUNK)
for i = 1, #beyond, 2 do
  local theirs = tonumber(redis.call('HGET', about, 'l' .. beyond[i]) or lease)
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
