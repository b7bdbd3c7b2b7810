-- Reads the queued entries of a partition, in order, behind a queue position. Returns the first number of the queue,
-- and then each event with its number and its history. Returns an empty table if the queue position is not in the
-- history.
local log, partition, after, history = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local queue = read_queue(log, partition)
if not has_place(log, queue, after, history) then
  return {}
end
local answer, read, count = {text(queue.first)}, 0, 0
local at = math.max(queue.first, after + 1)
-- The script reads few entries at a time, since an entry may be large.
local step = 1
while at <= queue.last and count < limit and read < bytes do
  local fields = {}
  for number = at, math.min(at + step, queue.last + 1, at + limit - count) - 1 do
    fields[#fields + 1] = queue.prefix .. text(number)
  end
  local values = redis.call('HMGET', log, unpack(fields))
  for i = 1, #values do
    local number, value = at + i - 1, values[i]
    answer[#answer + 1] = text(number)
    answer[#answer + 1] = history_at(queue, number, value)
    -- The answer has an empty text for an entry that another program has removed.
    answer[#answer + 1] = value and sub(value, 9) or ''
    read = read + #answer[#answer]
  end
  at, count = at + #values, count + #values
  -- The next step covers entries of the average size so far, up to the remaining bytes.
  step = math.max(1, math.min(step * 2, 64, math.floor((bytes - read) * count / (read + 1))))
end
return answer
