-- Removes the entries of a partition's queue up to and including a queue position (the number and the history digest of
-- an entry). Returns 0 if all these entries are removed. Returns 1 if the caller must repeat the call, because one call
-- removes a limited number of entries. If the fence does not have the caller's claim, removes nothing and returns 0. If
-- the store went back in time, removes nothing. In this case, returns 2 if the queue never had this queue position, and
-- 3 if the shard lacks the commit that the owner names.
local data, log, partition, claim, commit = KEYS[1], KEYS[2], ARGV[2], ARGV[3], tonumber(ARGV[4])
local through, history = tonumber(ARGV[5]), ARGV[6]
local fence, last_commit = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim then
  return 0
end
local queue = read_queue(log, partition)
if not has_position(log, queue, through, history) then
  return 2
elseif last_commit < commit then
  return 3
end
local first = queue.first
if through < first then
  return 0
end
local to = math.min(through, first + ENTRY_LIMIT - 1)
local last_value = to < queue.last and redis.call('HGET', log, queue.prefix .. text(to))
queue.before, queue.first = history_at(queue, to, last_value), to + 1
local waits = tonumber(redis.call('HGET', log, 'w') or '0') or 0
-- Write the ends of the queue first. From then on, no reader requests the entries that the script removes next.
redis.call('HSET', log, queue.field, pack_queue(queue), 'w', text(math.max(waits - (to + 1 - first), 0)))
for from = first, to, ARGUMENT_LIMIT do
  local fields = {}
  for number = from, math.min(from + ARGUMENT_LIMIT - 1, to) do
    fields[#fields + 1] = queue.prefix .. text(number)
  end
  redis.call('HDEL', log, unpack(fields))
end
return to < through and 1 or 0
