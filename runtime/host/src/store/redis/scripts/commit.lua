-- Commits a batch: all of it, except for writes whose condition does not hold.
--
-- Everything is read and checked first; what is wrong with one key refuses that key alone. Then
-- everything is written, with few calls, because a call costs as much as its work.
local PUT, DELETE = 1, 2
local ABSENT, NEW, TROUBLED, LETTERS, SPILL, TAKES_IDS = 1, 2, 4, 8, 16, 32
local NO_NUMBER = string.rep('\0', 8)
-- Bytes of a key, as `KEY_SIZE_LIMIT` says.
local KEY_LIMIT = 1024

local fence_key, jobs, states, outbox, due, expiry, letters, order, age = unpack(KEYS)
local claim, number, before, entry_id, dead_ttl = unpack(ARGV, 4, 8)
local count, ops, lengths, messages = tonumber(ARGV[9]), ARGV[10], ARGV[11], ARGV[12]
local free, forward = tonumber(ARGV[13]), ARGV[14] == '1'
local key_at, record_at = 14, 14 + count
local rest = record_at + count

local function next_argument()
  rest = rest + 1
  return ARGV[rest]
end

-- The fence.
need('string', fence_key)
local fence = redis.call('GET', fence_key)
if not fence then
  return 'N'
end
if #fence < 33 or byte(fence, 1) ~= 3 then
  return redis.error_reply('CORRUPT ' .. fence_key .. ' is no fence that this version reads')
end
if sub(fence, 2, 17) ~= claim or number == NO_NUMBER then
  return 'C' .. fence
end
if sub(fence, 18, 25) == number then
  -- Written again, so that waiting for replicas waits for the commit that it tells of.
  redis.call('SET', fence_key, fence)
  return 'A' .. sub(fence, 26)
end
if sub(fence, 18, 25) ~= before then
  return 'C' .. fence
end

for _, key in ipairs({jobs, states, letters}) do
  need('hash', key)
end
for _, key in ipairs({due, expiry, order, age}) do
  need('zset', key)
end
need('stream', outbox)

local now = math.max(time_now(), unpack8('<I8', fence, 26))
local now8 = pack('<I8', now)

-- What the writes are about to change.
local olds = {}
for from = 1, count, CHUNK do
  local to = math.min(from + CHUNK - 1, count)
  local found = redis.call('HMGET', jobs, unpack(ARGV, key_at + from, key_at + to))
  for i = 1, #found do
    olds[from + i - 1] = found[i]
  end
end

local function read_extra(flags)
  local extra = {}
  if has(flags, LETTERS) then
    extra.consumed, extra.letters = {}, {}
    for i = 1, tonumber(next_argument()) do
      extra.consumed[i] = next_argument()
    end
    for i = 1, tonumber(next_argument()) do
      extra.letters[i] = {next_argument(), next_argument(), next_argument()}
    end
  end
  if has(flags, SPILL) then
    extra.spill = {}
    for i = 1, tonumber(next_argument()) do
      extra.spill[i] = next_argument()
    end
  end
  if has(flags, TAKES_IDS) then
    extra.ids_from, extra.ids = next_argument(), {}
    for i = 1, tonumber(next_argument()) do
      extra.ids[i] = next_argument()
    end
  end
  return extra
end

-- Why a write is refused, as the fence keeps it; nil if it is not.
local function refusal(at, old, flags)
  if not old then
    return not has(flags, ABSENT) and char(1) or nil
  end
  if not has(flags, ABSENT) and sub(old, PARTITION, NEXT + 7) == sub(ops, at + 3, at + 18) then
    return nil
  end
  local next8 = sub(old, NEXT, NEXT + 7)
  if sub(old, PARTITION, PARTITION + 3) ~= sub(ops, at + 3, at + 6) then
    return char(2) .. next8
  end
  if not has(flags, ABSENT) and sub(old, TAKEOVERS, TAKEOVERS + 3) ~= sub(ops, at + 7, at + 10) then
    return char(2) .. next8
  end
  return char(0) .. next8
end

local function corrupt(words)
  return char(3) .. pack('<I4', #words) .. words
end

-- What stands in the way of what a write does beside the job.
local function obstacle_beside(key, any, extra)
  local words
  if has(any, SPILLED) or (extra and extra.spill) then
    words = obstacle('zset', of_key('spill', key))
  end
  if not words and (has(any, IDS) or (extra and extra.ids)) then
    words = obstacle('list', of_key('ids', key))
  end
  return words
end

-- Spilled events that are there already stay, and are told with whether they are the same.
local present = {}
local function find_present(i, key, extra)
  local spill, new = of_key('spill', key), {}
  for _, member in ipairs(extra.spill) do
    local sequence = sub(member, 1, 8)
    local there = redis.call('ZRANGEBYLEX', spill, '[' .. sequence, '[' .. sequence .. '\255\255\255\255\255\255\255\255\255', 'LIMIT', 0, 1)
    if there[1] then
      local same = sub(there[1], 9, 16) == sub(member, 9, 16)
      present[#present + 1] =
        pack('<I4', i - 1) .. string.reverse(sequence) .. char(same and 1 or 0)
    else
      new[#new + 1] = member
    end
  end
  extra.spill = new
end

local refused, refusals, leftovers, extras, puts = {}, {}, {}, {}, {}
local pieces = {}
for i = 1, count do
  local at = (i - 1) * 18
  local op, flags = byte(ops, at + 1, at + 2)
  if op == PUT then
    puts[i] = next_argument()
  end
  local extra = flags >= LETTERS and read_extra(flags) or nil
  extras[i] = extra
  local old, why = olds[i], nil
  if #ARGV[key_at + i] > KEY_LIMIT then
    why = corrupt('the key has ' .. #ARGV[key_at + i] .. ' bytes; ' .. KEY_LIMIT .. ' are allowed')
  elseif old and not is_sound(old) then
    why = corrupt('its record is damaged, or of a version that this one does not read')
  else
    if old and has_expired(old, now) then
      leftovers[i], olds[i], old = old, false, false
    end
    why = refusal(at, old, flags)
  end
  local any = (old or leftovers[i]) and byte(old or leftovers[i], 2) or 0
  if not why and (any >= SPILLED or extra) then
    local words = obstacle_beside(ARGV[key_at + i], any, extra)
    if words then
      why = corrupt(words)
    elseif old and extra and extra.spill and has(any, SPILLED) then
      find_present(i, ARGV[key_at + i], extra)
    end
  end
  if why then
    refused[i] = true
    refusals[#refusals + 1] = pack('<I4', i - 1) .. why
  else
    for _, letter in ipairs(extra and extra.letters or {}) do
      pieces[#pieces + 1] = letter[3]
    end
  end
end

-- What is to be published: the messages of all that is not refused, then the letters.
local function messages_of_applied()
  local chunks, from = {}, 1
  for i = 1, count do
    local length = unpack8('<I4', lengths, (i - 1) * 4 + 1)
    if length > 0 and not refused[i] then
      chunks[#chunks + 1] = sub(messages, from, from + length - 1)
    end
    from = from + length
  end
  return table.concat(chunks)
end
if #refusals > 0 then
  messages = messages_of_applied()
end

-- Free letters, and which of those that are forwarded are known.
local free_letters, known, seen = {}, {}, {}
for i = 1, free do
  local place = next_argument()
  free_letters[i] = {place, next_argument(), next_argument()}
  if forward then
    local put_at = redis.call('ZSCORE', age, place)
    if seen[place] or (put_at and put_at + dead_ttl > now) then
      known[#known + 1] = pack('<I4', i - 1)
    else
      pieces[#pieces + 1] = free_letters[i][3]
    end
    seen[place] = true
  end
end
if table.concat(pieces) ~= '' then
  messages = messages .. char(2) .. table.concat(pieces)
end

-- From here on everything is written. First what could be refused, if somebody else has put
-- entries into the outbox.
if messages ~= '' then
  redis.call('XADD', outbox, entry_id, 'e', now8 .. messages)
end

local function remove_letter(place)
  redis.call('HDEL', letters, place)
  redis.call('ZREM', order, place)
  redis.call('ZREM', age, place)
end

local function put_letters(list)
  for _, letter in ipairs(list) do
    local place, record = letter[1], letter[2]
    redis.call('HSET', letters, place, sub(record, 1, 1) .. now8 .. sub(record, 10))
    redis.call('ZADD', order, 0, place)
    redis.call('ZADD', age, now, place)
  end
end

local function remove_job(key, record)
  local flags = byte(record, 2)
  redis.call('HDEL', jobs, key)
  redis.call('HDEL', states, key)
  redis.call('ZREM', expiry, key)
  if has(flags, DUE) then
    -- Of another partition it may be, whose index was not checked.
    redis.pcall('ZREM', of_partition('due', unpack8('<I4', record, PARTITION)), key)
  end
  if has(flags, SPILLED) then
    redis.call('DEL', of_key('spill', key))
  end
  if has(flags, IDS) then
    redis.call('DEL', of_key('ids', key))
  end
end

-- Eight bytes in the order of numbers.
local function is_before(a, b)
  local a1, a2 = unpack8('>I4I4', a)
  local b1, b2 = unpack8('>I4I4', b)
  return a1 < b1 or (a1 == b1 and a2 < b2)
end

local function write_ids(key, old_flags, flags, extra)
  local ids = of_key('ids', key)
  if has(old_flags, IDS) and not has(flags, IDS) then
    redis.call('DEL', ids)
  end
  if not extra or not extra.ids then
    return
  end
  while has(old_flags, IDS) do
    local first = redis.call('LRANGE', ids, 0, 15)
    local gone = 0
    while first[gone + 1] and is_before(first[gone + 1], extra.ids_from) do
      gone = gone + 1
    end
    if gone > 0 then
      redis.call('LPOP', ids, gone)
    end
    if gone < 16 then
      break
    end
  end
  for from = 1, #extra.ids, CHUNK do
    redis.call('RPUSH', ids, unpack(extra.ids, from, math.min(from + CHUNK - 1, #extra.ids)))
  end
end

local function write_spill(key, record, old_flags, flags, extra)
  local spill = of_key('spill', key)
  if has(old_flags, SPILLED) then
    if has(flags, SPILLED) then
      local next8 = string.reverse(sub(record, NEXT, NEXT + 7))
      redis.call('ZREMRANGEBYLEX', spill, '-', '(' .. next8)
    else
      redis.call('DEL', spill)
    end
  end
  if extra and extra.spill then
    for _, member in ipairs(extra.spill) do
      redis.call('ZADD', spill, 0, member)
    end
  end
end

-- The record with its times, and all that lies beside a job that has more than a record and a
-- state, or had.
local function write_rare(i, key, record, old)
  local flags, old_flags = byte(record, 2), old and byte(old, 2) or 0
  if leftovers[i] then
    remove_job(key, leftovers[i])
  end
  local due_at, expire_at, entry = 0, 0, old and unpack8('<I8', old, 19) or 0
  if has(flags, DUE) then
    due_at = now + unpack8('<I8', record, 3)
    redis.call('ZADD', due, due_at, key)
  elseif has(old_flags, DUE) then
    redis.call('ZREM', due, key)
  end
  if has(flags, EXPIRES) then
    expire_at = now + unpack8('<I8', record, 11)
    -- An entry that comes too early is moved when it is met.
    if entry == 0 or entry > expire_at then
      redis.call('ZADD', expiry, expire_at, key)
      entry = expire_at
    end
  elseif entry ~= 0 then
    redis.call('ZREM', expiry, key)
    entry = 0
  end
  local extra = extras[i]
  write_spill(key, record, old_flags, flags, extra)
  write_ids(key, old_flags, flags, extra)
  if extra and extra.letters then
    for _, place in ipairs(extra.consumed) do
      remove_letter(place)
    end
    put_letters(extra.letters)
  end
  return sub(record, 1, 2) .. pack('<I8I8I8', due_at, expire_at, entry) .. sub(record, JOB)
end

local function put_all(hash, pairs)
  for from = 1, #pairs, CHUNK do
    redis.call('HSET', hash, unpack(pairs, from, math.min(from + CHUNK - 1, #pairs)))
  end
end

local records, values, gone = {}, {}, {}
for i = 1, count do
  if not refused[i] then
    local at = (i - 1) * 18
    local op, flags = byte(ops, at + 1, at + 2)
    local key, record, old = ARGV[key_at + i], ARGV[record_at + i], olds[i]
    if has(flags, NEW) then
      record = sub(record, 1, INCARNATION - 1) .. now8 .. sub(record, INCARNATION + 8)
    end
    if has(flags, TROUBLED) then
      record = sub(record, 1, SINCE - 1) .. now8 .. sub(record, SINCE + 8)
    end
    if leftovers[i] or extras[i] or byte(record, 2) ~= 0 or (old and byte(old, 2) ~= 0) then
      record = write_rare(i, key, record, old)
    end
    records[#records + 1] = key
    records[#records + 1] = record
    if op == PUT then
      values[#values + 1] = key
      values[#values + 1] = puts[i]
    elseif op == DELETE then
      gone[#gone + 1] = key
    end
  end
end
put_all(jobs, records)
put_all(states, values)
for from = 1, #gone, CHUNK do
  redis.call('HDEL', states, unpack(gone, from, math.min(from + CHUNK - 1, #gone)))
end
put_letters(free_letters)

local reply = now8 .. pack('<I4', #refusals) .. table.concat(refusals)
  .. pack('<I4', #known) .. table.concat(known) .. table.concat(present)
redis.call('SET', fence_key, sub(fence, 1, 17) .. number .. reply)

-- Some of what has expired, more than can come to be in one commit. Until then it is invisible.
local function sweep_job(key)
  local record = redis.call('HGET', jobs, key)
  local expires = record and is_sound(record) and has(byte(record, 2), EXPIRES)
  if expires and not has_expired(record, now) then
    -- Its entry was too early.
    local at = unpack8('<I8', record, 11)
    redis.call('HSET', jobs, key, sub(record, 1, 18) .. pack('<I8', at) .. sub(record, JOB))
    redis.call('ZADD', expiry, at, key)
  elseif expires and not obstacle_beside(key, byte(record, 2)) then
    remove_job(key, record)
  else
    -- What cannot be read or removed stays where it is, for people to look at.
    redis.call('ZREM', expiry, key)
  end
end

local sweep = 16 + 2 * count
for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', now, 'LIMIT', 0, sweep)) do
  sweep_job(key)
end
local old_letters =
  redis.call('ZRANGEBYSCORE', age, '-inf', now - dead_ttl, 'LIMIT', 0, sweep)
for _, place in ipairs(old_letters) do
  remove_letter(place)
end
return 'A' .. reply
