-- Starts a rollout, which names the handler version that executes the events of a stream. Changes nothing if the
-- rollout has changed since the caller read it. Returns 1 if the stream has the requested rollout after this call. This
-- includes the case that an earlier try of the call has set it. Otherwise returns 0.
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
