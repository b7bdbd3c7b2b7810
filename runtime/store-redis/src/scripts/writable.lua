-- Checks whether the store accepts events now. This script has no flags, so the server refuses it in the same four
-- cases as a script that writes: the server has no free memory; its last write to the disk failed; it has too few
-- replicas; or it is a replica itself. The script also returns an error if the user may not run a command that the
-- store needs to accept an event. Returns 0 if the record of the store is missing (the third Redis key, which only the
-- caller of one shard names), otherwise 1. If the second argument is not empty, writes a mark of this name.
local marks, data, store, mark = KEYS[1], KEYS[2], KEYS[3], ARGV[2]
local checks = {
  {'HGET', data, 'f'}, {'HMGET', data, 'f'}, {'HSET', data, 'f', '1'}, {'HDEL', data, 'f'}, {'TIME'},
}
if store then
  checks[#checks + 1] = {'HLEN', store}
  checks[#checks + 1] = {'SADD', store, '1'}
end
local refused = rights_error(checks)
if refused then
  return refused
end
if store and redis.call('HLEN', store) == 0 then
  return 0
end
if mark ~= '' then
  redis.call('HSET', marks, mark, 1)
end
return 1
