-- Writes the record of the store's clock: the newest time of the clock of a process, and the time at which a process
-- first saw a jump of the server's clock (0 if there is none). If the record of the store is missing, writes nothing,
-- because a start would otherwise not notice that the store has lost its data.
local store, record = KEYS[1], ARGV[2]
if redis.call('HEXISTS', store, 'schema') == 1 then
  redis.call('HSET', store, 'clock', record)
end
