-- Raises the counters of keys in a log. Does nothing if no call has assigned messages in this log, because the store
-- then does not number the messages of this destination. Arguments: the time in ms for which the store remembers the
-- number of an ended key; then, for each key, the key, its next number, and 1 if the key has ended.
local log, ttl = KEYS[1], tonumber(ARGV[2])
if redis.call('HEXISTS', log, 'b') == 0 then
  return 0
end
local now = time_now()
local raised = {}
for from = 3, #ARGV, 3 do
  local field, next_number, has_ended = 'c' .. ARGV[from], tonumber(ARGV[from + 1]), ARGV[from + 2] == '1'
  -- The script skips numbers that are too large for its exact arithmetic. Only producers give such numbers.
  local found = next_number < EXACT and redis.call('HGET', log, field)
  if found and (#found ~= 17 or byte(found, 1) ~= layout.COUNTER_FORMAT) then
    corrupt_field(field, log, 'count of a key that this version reads')
  end
  local present, ends = 0, 0
  if found then
    present, ends = unpack8('<I8', found, 2), unpack8('<I8', found, 10)
  end
  if present < next_number and next_number < EXACT then
    if has_ended and ends == 0 then
      ends = now + ttl
    end
    raised[#raised + 1] = field
    raised[#raised + 1] = char(layout.COUNTER_FORMAT) .. pack('<I8I8', next_number, ends)
  end
end
with_all('HSET', log, raised)
return #raised / 2
