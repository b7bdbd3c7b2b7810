-- Gives jobs of other partitions to this one, with their due entries.
local jobs, due, partition4, partition = KEYS[1], KEYS[2], ARGV[4], tonumber(ARGV[5])
need('hash', jobs)
need('zset', due)
local now = time_now()

local function take_over(key, record)
  local old = unpack8('<I4', record, PARTITION)
  if old == partition then
    return
  end
  local takeovers = (unpack8('<I4', record, TAKEOVERS) + 1) % 4294967296
  record = sub(record, 1, PARTITION - 1) .. partition4 .. pack('<I4', takeovers) .. sub(record, NEXT)
  redis.call('HSET', jobs, key, record)
  if has(byte(record, 2), DUE) then
    redis.call('ZADD', due, unpack8('<I8', record, 3), key)
    redis.pcall('ZREM', of_partition('due', old), key)
  end
end

for i = 6, #ARGV do
  local record = redis.call('HGET', jobs, ARGV[i])
  -- What cannot be read stays where it is: the load says so.
  if record and is_sound(record) and not has_expired(record, now) then
    take_over(ARGV[i], record)
  end
end
return #ARGV - 5
