-- Writes the record of the store's clock. The record contains two times: the time of the caller's clock, and the
-- server's time at which a process first saw a jump of the server's clock. The second time is 0 if there is no jump, or
-- if the jump is confirmed. If the stored record has a later time of the clock, keeps this time, because another
-- process has written it. If the record of the store is missing, writes nothing, because a start would otherwise not
-- notice that the store has lost its data.
local store, time, jump = KEYS[1], ARGV[2], ARGV[3]
if redis.call('HEXISTS', store, 'schema') == 1 then
  local stored = string.match(redis.call('HGET', store, 'clock') or '', '^(%d+) %d+$')
  if stored and tonumber(stored) > tonumber(time) and tonumber(stored) < EXACT then
    time = stored
  end
  redis.call('HSET', store, 'clock', time .. ' ' .. jump)
end
