-- Reads jobs with their states and ids, in order, until they have so many bytes together.
-- Answers the time, and for each job nothing, or record, state and ids, or in words what stands in
-- the way.
local jobs, states, bytes = KEYS[1], KEYS[2], tonumber(ARGV[4])
local now, read, answer = time_now(), 0, {}
answer[1] = string.format('%.0f', now)

local function load_one(key, record)
  if not is_sound(record) then
    return {record, false, {}}
  end
  if has_expired(record, now) then
    return false
  end
  local ids = {}
  if has(byte(record, 2), IDS) then
    local name = of_key('ids', key)
    local words = obstacle('list', name)
    if words then
      return words
    end
    ids = redis.call('LRANGE', name, 0, -1)
  end
  return {record, redis.call('HGET', states, key), ids}
end

need('hash', jobs)
need('hash', states)
for from = 5, #ARGV, CHUNK do
  local to = math.min(from + CHUNK - 1, #ARGV)
  local records = redis.call('HMGET', jobs, unpack(ARGV, from, to))
  for i = 1, #records do
    local record = records[i]
    local loaded = record and load_one(ARGV[from + i - 1], record)
    answer[#answer + 1] = loaded or false
    if type(loaded) == 'table' then
      read = read + #record + #(loaded[2] or '') + 32 * #loaded[3]
    end
    if read >= bytes then
      return answer
    end
  end
end
return answer
