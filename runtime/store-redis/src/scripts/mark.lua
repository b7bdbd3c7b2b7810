-- Writes a mark into a shard if two conditions hold:
--
-- 1. The mark has the value that the caller expects, or already has the new value. In the second case, an earlier try
--    wrote the new value, and the caller repeats the call because it received no reply.
-- 2. The shard has the producer's witness: the newest message or call that the shard has confirmed to the producer. The
--    script checks this condition only if the caller names the log of a destination.
--
-- Returns 1 if the shard has the new mark now, otherwise 0.
local marks, log, name, value = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
-- The value that the caller expects; false if the shard must not have the mark.
local before = ARGV[4] == '1' and ARGV[5]
local found = redis.call('HGET', marks, name)
if found ~= before and found ~= value then
  return 0
end
if log and not has_witness(log, ARGV[6], ARGV[7], ARGV[8], ARGV[9]) then
  return 0
end
redis.call('HSET', marks, name, value)
return 1
