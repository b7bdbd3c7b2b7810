-- Reads the retained messages of a key that have the requested sequences and have not expired. Ends before a message
-- that would exceed the limit `bytes`, unless it is the first message. Returns the messages that it has read, and the
-- number of requested sequences that it has processed. It processes the sequences in the order of the request.
local log, key, bytes, answer, read = KEYS[1], ARGV[2], tonumber(ARGV[3]), {}, 0
local expiry_now = expiry_times(time_now())
for from = 4, #ARGV, 64 do
  local fields = {}
  for i = from, math.min(from + 63, #ARGV) do
    fields[#fields + 1] = 'm' .. key .. ARGV[i]
  end
  local values = redis.call('HMGET', log, unpack(fields))
  for i = 1, #values do
    local value = values[i]
    if value and (#value < 8 or unpack8('<I8', value, 1) > expiry_now) then
      if read + #value > bytes and #answer > 0 then
        return {answer, from + i - 5}
      end
      read = read + #value
      answer[#answer + 1] = value
    end
  end
end
return {answer, #ARGV - 3}
