-- Checks whether a stream has data in a shard: waiting queue entries, or fields of its hash of data. Fields whose names
-- begin with `f`, `b`, `q` or `r` do not count, because they still exist when a partition no longer has data. Returns 1
-- if it finds data. Otherwise returns 0, and the cursor from which the next call continues; the cursor is 0 at the end.
local data, log, cursor, examined, step = KEYS[1], KEYS[2], ARGV[2], 0, 8
if (tonumber(redis.call('HGET', log, 'w') or '0') or 1) > 0 then
  return {1, '0'}
end
repeat
  -- Usually one of the first fields shows that the stream has data, so begin with a few fields.
  local scanned = redis.call('HSCAN', data, cursor, 'COUNT', step)
  cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    if not string.find(scanned[2][i], '^[fbqr]') then
      return {1, '0'}
    end
  end
  examined, step = examined + step, math.min(step * 4, ARGUMENT_LIMIT)
until cursor == '0' or examined >= ENTRY_LIMIT
return {0, cursor}
