-- Starts a new rollout of a stream. A rollout names the handler version that executes the events of the stream. Changes
-- nothing if the stored rollout is no longer `before`, the rollout that the caller has read. Returns 1 if the stored
-- rollout is the new rollout after this call, even if an earlier try of the call has stored the new rollout. Otherwise
-- returns 0.
local versions, instance_info = KEYS[1], KEYS[2]
local stream, before, row, nonce = ARGV[2], ARGV[3], ARGV[4], ARGV[5]
must_be_hash(instance_info)
local found = redis.call('HGET', versions, stream) or ''
if found == row then
  return 1
end
if found ~= before then
  return 0
end
redis.call('HSET', versions, stream, row)
redis.call('HSET', instance_info, 'generation', nonce)
return 1
