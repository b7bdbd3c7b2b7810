-- Reads the record of the store: its schema and its number of shards. If the store is new and the last argument is 1,
-- writes the schema and the number of shards. Returns the stored schema, the stored number of shards, and 1 if the
-- store was new (otherwise 0). If the Redis user of the connection may not run a required command, returns an error
-- that lists these commands. If the record is missing although the store has partitions, returns an error too.
local store, data, index, partitions = unpack(KEYS)
local schema, shards, replicas, creates = ARGV[2], ARGV[3], ARGV[4], ARGV[5] == '1'

-- True if the server lacks a command, because its configuration renames the command.
local is_renamed = false

-- Returns whether the Redis user of the connection may run a command with these arguments.
local function may(...)
  local exists, allowed = pcall(redis.acl_check_cmd, ...)
  is_renamed = is_renamed or not exists
  return exists and allowed
end

local missing = {}
for name, allowed in pairs({
  ['type'] = may('TYPE', data),
  ['sadd'] = may('SADD', data, '1'), ['smembers'] = may('SMEMBERS', data),
  ['hget'] = may('HGET', data, 'f'), ['hmget'] = may('HMGET', data, 'f'),
  ['hset'] = may('HSET', data, 'f', '1'), ['hdel'] = may('HDEL', data, 'f'),
  ['hlen'] = may('HLEN', data), ['hscan'] = may('HSCAN', data, 0),
  ['hexists'] = may('HEXISTS', data, 'f'), ['hstrlen'] = may('HSTRLEN', data, 'f'),
  ['zadd'] = may('ZADD', index, 0, 'm'), ['zrem'] = may('ZREM', index, 'm'),
  ['zrange'] = may('ZRANGE', index, 0, 0), ['zrank'] = may('ZRANK', index, 'm'),
  ['zrangebylex'] = may('ZRANGEBYLEX', index, '-', '+'),
  ['zrangebyscore'] = may('ZRANGEBYSCORE', index, 0, 0),
  ['zcount'] = may('ZCOUNT', index, 0, 0), ['zscore'] = may('ZSCORE', index, 'm'),
  ['time'] = may('TIME'), ['wait'] = replicas == '0' or may('WAIT', '1', '1'),
}) do
  if not allowed then
    missing[#missing + 1] = name
  end
end
table.sort(missing)
if #missing > 0 then
  return redis.error_reply('NOPERM the user must be allowed to run these commands on ' .. store
    .. ' and on all keys with the same prefix: ' .. table.concat(missing, ', ')
    .. (is_renamed and '. The server renames at least one of them: remove rename-command from its configuration' or ''))
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
