-- Raises the counters of keys in the log of a destination. Does nothing if the fence has another claim. Arguments: the
-- partition, the claim, the time in ms for which the store remembers the number of an ended key, and 1 if the store
-- numbers all messages of the destination; then, for each key, the key, its lowest next number, and 1 if the key has
-- ended. If the store may not number the messages, the script does nothing in a log in which no call has assigned
-- messages.
--
-- No list of expiring fields contains a counter that this script writes for an ended key. Such a counter stays in the
-- log after its expiry, until a message of the key is assigned.
local data, log, partition, claim, ttl = KEYS[1], KEYS[2], ARGV[2], ARGV[3], tonumber(ARGV[4])
local fence = read_fence(data, partition)
if not fence or claim_of(fence) ~= claim or (ARGV[5] ~= '1' and redis.call('HEXISTS', log, 'b') == 0) then
  return 0
end
local now = time_now()
local raised = {}
for from = 6, #ARGV, 3 do
  local field, next_number, has_ended = 'c' .. ARGV[from], tonumber(ARGV[from + 1]), ARGV[from + 2] == '1'
  local found = redis.call('HGET', log, field)
  -- The script skips a damaged counter, which the next assignment of a message reports. It also skips numbers that are
  -- too large for its exact arithmetic; only producers give such numbers.
  if next_number < EXACT and (not found or is_counter(found)) then
    local present, ends
    if found then
      present, ends = read_counter(found, now)
    end
    if not present or present < next_number then
      raised[#raised + 1] = field
      raised[#raised + 1] = pack_counter(next_number, has_ended and now + ttl or ends or 0)
    end
  end
end
with_all('HSET', log, raised)
return #raised / 2
