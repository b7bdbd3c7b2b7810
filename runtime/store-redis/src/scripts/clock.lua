-- Returns the time of the server, and the record of the store's clock. This record has the newest time of the clock of
-- a process, and the time at which a process first saw a jump of the server's clock (0 if there is none). If the caller
-- names a new record of the clock, first writes this record. But if the record of the store is missing, writes nothing,
-- because a start would otherwise not notice that the store has lost its data.
local store, record = KEYS[1], ARGV[2]
if record ~= '' and redis.call('HEXISTS', store, 'schema') == 1 then
  redis.call('HSET', store, 'clock', record)
end
return {text(server_time()), redis.call('HGET', store, 'clock')}
