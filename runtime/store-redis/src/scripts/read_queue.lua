-- Reads the entries of a partition's queue after a queue position (the number and the history digest of an entry), in
-- order. Returns the number of the first entry in the queue, and then for each read entry its number, its history
-- digest and its event. Returns an empty table if the queue never had this queue position: the store then went back in
-- time.
local log, partition, after, history = KEYS[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local limit, bytes = tonumber(ARGV[5]), tonumber(ARGV[6])
local queue = read_queue(log, partition)
if not has_position(log, queue, after, history) then
  return {}
end
local answer, read, count = {text(queue.first)}, 0, 0
local at = math.max(queue.first, after + 1)
-- Begin with one entry, because an entry may be large.
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
    -- If another program has removed an entry, return an empty text in place of the event.
    answer[#answer + 1] = value and sub(value, 9) or ''
    read = read + #answer[#answer]
  end
  at, count = at + #values, count + #values
  -- From the average size of the entries so far, calculate how many entries fit into the remaining bytes. The next step
  -- reads this number, but at most 64, and at most twice as many as the previous step.
  step = math.max(1, math.min(step * 2, 64, math.floor((bytes - read) * count / (read + 1))))
end
return answer
