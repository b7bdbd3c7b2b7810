-- Writes a mark into a shard if two conditions hold: the mark still has the value that the caller expects, and the
-- shard has the producer's witness (the newest message or call that the shard has confirmed to the producer). The
-- script checks the second condition only if the caller names the log of a destination. Returns 1 if the script wrote
-- the mark, otherwise 0.
local marks, log, name, value = KEYS[1], KEYS[2], ARGV[2], ARGV[3]
local has_before, before = ARGV[4] == '1', ARGV[5]
local found = redis.call('HGET', marks, name)
if has_before ~= (found and true or false) or (has_before and found ~= before) then
  return 0
end
if log and not has_witness(log, ARGV[6], ARGV[7], ARGV[8], ARGV[9]) then
  return 0
end
redis.call('HSET', marks, name, value)
return 1
