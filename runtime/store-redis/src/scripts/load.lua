-- Reads key records with their states and accepted ids, in the order of the arguments, until their total size reaches
-- `bytes`. Returns the server's time, the time by which data expires, and one value for each key that it has read. The
-- value of a key without a record, or with an expired record, is false. The value of any other key consists of the
-- record, the state if it has a separate field, the number of the first block of ids, and the blocks of ids.
local data, ids, bytes = KEYS[1], KEYS[2], tonumber(ARGV[2])
local now, read, answer = time_now(), 0, {}
local expiry_now = expiry_times(now)
answer[1], answer[2] = text(now), text(expiry_now)

-- Returns the value of a key for the answer; false if the record has expired.
local function load_one(field, record)
  if not is_sound(record) then
    return {record, false, '0', {}}
  end
  if has_expired(record, expiry_now) then
    return false
  end
  local flags, key, state, first, blocks = byte(record, 2), sub(field, 2), false, 0, {}
  if has(flags, layout.LARGE) then
    state = redis.call('HGET', data, 's' .. key)
  end
  if has(flags, layout.IDS) then
    local from, behind = ids_range(record)
    first = math.floor(from / layout.BLOCK)
    local names = {}
    for block = first, math.floor((behind - 1) / layout.BLOCK) do
      names[#names + 1] = id_block(key, block)
    end
    for at = 1, #names, ARGUMENT_LIMIT do
      local some = redis.call('HMGET', ids, unpack(names, at, math.min(at + ARGUMENT_LIMIT - 1, #names)))
      for i = 1, #some do
        blocks[#blocks + 1] = some[i]
      end
    end
  end
  return {record, state, text(first), blocks}
end

for from = 3, #ARGV, ARGUMENT_LIMIT do
  local to = math.min(from + ARGUMENT_LIMIT - 1, #ARGV)
  local records = redis.call('HMGET', data, unpack(ARGV, from, to))
  for i = 1, #records do
    local record = records[i]
    local loaded = record and load_one(ARGV[from + i - 1], record)
    answer[#answer + 1] = loaded
    if loaded then
      read = read + #record + #(loaded[2] or '') + layout.BLOCK * layout.ID * #loaded[4]
    end
    if read >= bytes then
      return answer
    end
  end
end
return answer
