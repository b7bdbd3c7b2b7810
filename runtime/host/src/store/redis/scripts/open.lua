-- Writes down what this store is at its first use, and answers what is written.
local key, schema, shards = KEYS[1], ARGV[4], ARGV[5]
need('hash', key)
if redis.call('HLEN', key) == 0 then
  redis.call('HSET', key, 'schema', schema, 'shards', shards)
end
return redis.call('HMGET', key, 'schema', 'shards')
