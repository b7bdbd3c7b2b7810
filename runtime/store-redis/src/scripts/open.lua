-- Reads the record of the store: its schema and its number of shards. If the store is new and the last argument is 1,
-- writes the schema and the number of shards. Returns the stored schema, the stored number of shards, and 1 if the
-- store was new (otherwise 0). If the Redis user of the connection may not run a required command, returns an error
-- that lists these commands. If the record is missing although the store has partitions, returns an error too.
local store, data, index, partitions = unpack(KEYS)
local schema, shards, replicas, creates = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

local checks = {
  {'TYPE', data}, {'SADD', data, '1'}, {'SMEMBERS', data}, {'HGET', data, 'f'}, {'HMGET', data, 'f'},
  {'HSET', data, 'f', '1'}, {'HDEL', data, 'f'}, {'HLEN', data}, {'HSCAN', data, 0}, {'HEXISTS', data, 'f'},
  {'HSTRLEN', data, 'f'}, {'ZADD', index, 0, 'm'}, {'ZREM', index, 'm'}, {'ZRANGE', index, 0, 0},
  {'ZRANK', index, 'm'}, {'ZRANGEBYLEX', index, '-', '+'}, {'ZRANGEBYSCORE', index, 0, 0}, {'ZCOUNT', index, 0, 0},
  {'ZSCORE', index, 'm'}, {'TIME'},
}
if replicas ~= '0' then
  checks[#checks + 1] = {'WAIT', '1', '1'}
end
local refused = rights_error(checks)
if refused then
  return refused
end

local is_new = redis.call('HLEN', store) == 0
if is_new then
  if #redis.call('SMEMBERS', partitions) > 0 then
    return redis.error_reply('CORRUPT ' .. store .. ', which has the number of shards, is missing, but '
      .. partitions .. ' exists: write the missing key again with its old values (HSET ' .. store .. ' schema '
      .. schema .. ' shards N), or use another store.prefix')
  end
  if creates then
    redis.call('HSET', store, 'schema', schema, 'shards', shards)
  end
end
local found = redis.call('HMGET', store, 'schema', 'shards')
return {found[1], found[2], is_new and 1 or 0}
