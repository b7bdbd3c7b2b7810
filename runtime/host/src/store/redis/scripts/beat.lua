-- Notes that an instance runs, and forgets those that were not heard of in time. Answers how many ms
-- it is heard of from now on, and the generation of the table.
local instances, about = KEYS[1], KEYS[2]
local id, words, report = ARGV[2], ARGV[3], ARGV[4]
local lease, longest, nonce = tonumber(ARGV[5]), tonumber(ARGV[6]), ARGV[7]
local now = time_now()
local till = tonumber(redis.call('ZSCORE', instances, id) or '0')
local found = redis.call('HMGET', about, 'generation', id)
local generation, changed = found[1] or '0', found[2] ~= words

for _, gone in ipairs(redis.call('ZRANGEBYSCORE', instances, '-inf', text(now), 'LIMIT', 0, CHUNK)) do
  if gone ~= id then
    redis.call('HDEL', about, gone, 'r' .. gone)
    redis.call('ZREM', instances, gone)
    changed = true
  end
end
-- The server's time has gone back since they were heard of.
for _, other in ipairs(redis.call('ZRANGEBYSCORE', instances, '(' .. text(now + longest), '+inf', 'LIMIT', 0, CHUNK)) do
  redis.call('ZADD', instances, text(now + lease), other)
end
if till < now + lease * 2 / 3 or till > now + lease then
  till = now + lease
  redis.call('ZADD', instances, text(till), id)
end
if report ~= '' then
  redis.call('HSET', about, 'r' .. id, report)
end
if changed then
  generation = nonce
  redis.call('HSET', about, id, words, 'generation', generation)
end
return {till - now, generation}
