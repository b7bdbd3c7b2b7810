-- Commits a batch: all of it, except for writes whose condition does not hold.
--
-- Jobs with their states, spilled events, letters, messages and the fence are fields of one hash,
-- and one HSET makes the commit. What is written before it (entries of indexes, blocks of ids)
-- means nothing until a record speaks of it, and is written over by the next try. What is removed
-- after it no record speaks of any more. So a script that ends half-way, or a server's log that is
-- read back to a point within it, leaves nothing wrong, and the same commit may be made again.
-- Arguments of the one HSET: nearly what Lua's stack holds. The host's `BATCH_LIMIT` rests on it.
local MOST = 7900

local data, due, expiry, letters_index, letters_age, spilled, ids = unpack(KEYS)
local partition, claim, number8, before8, number = unpack(ARGV, 2, 6)
local dead_ttl, count, ops, lengths, messages = tonumber(ARGV[7]), tonumber(ARGV[8]), unpack(ARGV, 9, 11)
local free, forward = tonumber(ARGV[12]), ARGV[13] == '1'
local field_at, record_at = 13, 13 + count
local rest = record_at + count

local function next_argument()
  rest = rest + 1
  return ARGV[rest]
end

-- The fence.
local fence, _, first_in_outbox = read_fence(data, partition)
if not fence then
  return 'N'
end
if claim_of(fence) ~= claim or number8 == NO_NUMBER then
  return 'C' .. fence
end
local last8 = sub(fence, FENCE_NUMBER, FENCE_ANSWER - 1)
if last8 == number8 then
  -- Written again, so that waiting for replicas waits for the commit that it tells of.
  redis.call('HSET', data, 'f' .. partition, fence)
  return 'A' .. sub(fence, FENCE_ANSWER)
end
if last8 ~= before8 then
  return 'C' .. fence
end

-- Durations are counted from the server's time as it is. The time of the commit makes incarnations:
-- it must never go back, nor stand still.
local wall = time_now()
local wall8 = pack('<I8', wall)
local now8 = pack('<I8', math.max(wall, unpack8('<I8', fence, FENCE_ANSWER) + 1))

-- What the writes are about to change.
local olds = {}
for from = 1, count, CHUNK do
  local to = math.min(from + CHUNK - 1, count)
  local some = redis.call('HMGET', data, unpack(ARGV, field_at + from, field_at + to))
  for i = 1, #some do
    olds[from + i - 1] = some[i]
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
      extra.spill[i] = {next_argument(), next_argument()}
    end
  end
  if has(flags, TAKES_IDS) then
    extra.ids = next_argument()
  end
  return extra
end

-- Whether a write was executed under an older decision on the version than the job.
local function is_older(old, new)
  return sub(old, GENERATION, GENERATION + 7) ~= sub(new, GENERATION, GENERATION + 7)
    and unpack8('<I8', old, GENERATION) > unpack8('<I8', new, GENERATION)
end

-- Why a write is refused, as the fence keeps it; nil if it is not.
local function refusal(at, old, flags, new)
  if not old then
    return not has(flags, ABSENT) and char(REFUSED_ABSENT) or nil
  end
  local is, expected = sub(old, PARTITION, NEXT + 7), sub(ops, at + 3, at + OP_SIZE)
  if is == expected and not has(flags, ABSENT) then
    return is_older(old, new) and char(REFUSED_VERSION) or nil
  end
  -- A job that is not expected at all has no number of take-overs that would be the right one.
  local owner = (has(flags, ABSENT) and TAKEOVERS or NEXT) - PARTITION
  local same_owner = sub(is, 1, owner) == sub(expected, 1, owner)
  return char(same_owner and REFUSED_NEXT or REFUSED_PARTITION) .. sub(old, NEXT, NEXT + 7)
end

local function corrupt(words)
  return char(REFUSED_CORRUPT) .. pack('<I4', #words) .. words
end

-- Spilled events that are there already stay, and are told with whether they are the same.
local present = {}
local function find_present(i, key, extra, old)
  local new, last = {}, spilled_and_first(old)
  for _, event in ipairs(extra.spill) do
    -- Mostly it is behind all that is there.
    local may_be = last >= EXACT or unpack8('>I8', event[1]) <= last
    local there = may_be and redis.call('HGET', data, 'e' .. key .. event[1])
    if there then
      local same = sub(there, 1, 8) == sub(event[2], 1, 8)
      present[#present + 1] =
        pack('<I4', i - 1) .. string.reverse(event[1]) .. char(same and 1 or 0)
    else
      new[#new + 1] = event
    end
  end
  extra.spill = new
end

local refused, refusals, expired, extras, beside = {}, {}, {}, {}, {}
local pieces = {}
for i = 1, count do
  local at = (i - 1) * OP_SIZE
  local op, flags = byte(ops, at + 1, at + 2)
  if op == PUT_BESIDE then
    beside[i] = next_argument()
  end
  local extra = flags >= LETTERS and read_extra(flags) or nil
  extras[i] = extra
  local old, why = olds[i], nil
  if #ARGV[field_at + i] > KEY_LIMIT + 1 then
    why = corrupt('the key has ' .. #ARGV[field_at + i] - 1 .. ' bytes; ' .. KEY_LIMIT .. ' are allowed')
  elseif old and not is_sound(old) then
    why = corrupt('its record is damaged, or of a version that this one does not read')
  else
    if old and has_expired(old, wall) then
      expired[i], olds[i], old = old, false, false
    end
    why = refusal(at, old, flags, ARGV[record_at + i])
    if not why and op == KEEP and old and state_at(old) > #old + 1 then
      why = corrupt('its record is cut off')
    end
  end
  if why then
    refused[i] = true
    refusals[#refusals + 1] = pack('<I4', i - 1) .. why
  elseif extra then
    if extra.spill and old and has(byte(old, 2), SPILLED) then
      find_present(i, sub(ARGV[field_at + i], 2), extra, old)
    end
    for _, letter in ipairs(extra.letters or {}) do
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
    local there = redis.call('HGET', data, 'l' .. place)
    if seen[place] or (there and #there >= LETTER_TIME + 8 and unpack8('<I8', there, LETTER_TIME) + dead_ttl > wall) then
      known[#known + 1] = pack('<I4', i - 1)
    else
      pieces[#pieces + 1] = free_letters[i][3]
    end
    seen[place] = true
  end
end
if table.concat(pieces) ~= '' then
  messages = messages .. char(OUTBOX_LETTERS) .. table.concat(pieces)
end

-- From here on there are writes. The first one is for the server's log: with it each commit is a
-- transaction there, and ends one that an earlier crash may have left open (docs/internals/storage.md).
redis.call('HSET', data, 'b' .. partition, number)

-- Fields of the commit, and what goes after it. New letters may go before it if there are more fields
-- than fit into one call: what is in a letter is of no key's state.
local early, main, gone = {}, {}, {}
local due_put, due_later, due_gone, expiry_put, expiry_gone = {}, {}, {}, {}, {}
local letters_put, age_put, consumed = {}, {}, {}
local spilled_put, spilled_done = {}, {}
local ids_put, ids_gone, ids_cut = {}, {}, {}

local function put(list, a, b)
  list[#list + 1] = a
  list[#list + 1] = b
end

local function put_letters(list)
  for _, letter in ipairs(list) do
    local place, record = letter[1], letter[2]
    put(early, 'l' .. place, sub(record, 1, LETTER_TIME - 1) .. wall8 .. sub(record, LETTER_TIME + 8))
    put(letters_put, 0, place)
    put(age_put, wall, place)
    consumed[place] = nil
  end
end

-- Blocks of spilled events that are removed together.
local BLOCKS = 64

-- Removes a key's spilled events, those before a sequence or all.
local function drop_spilled(key, before)
  local by_key = spilled_by(key)
  local behind = before and by_key .. spill_block(before)
  local to = '[' .. (behind or by_key .. string.rep('\255', 8))
  repeat
    local members = redis.call('ZRANGEBYLEX', spilled, '[' .. by_key, to, 'LIMIT', 0, BLOCKS)
    local fields, done = {}, {}
    for _, member in ipairs(members) do
      for _, sequence in ipairs(sequences_of(member, by_key)) do
        if not before or is_after(before, sequence) then
          fields[#fields + 1] = 'e' .. key .. sequence
        end
      end
      -- The block that `before` is in may have more.
      if member ~= behind then
        done[#done + 1] = member
      end
    end
    with_all('HDEL', data, fields)
    with_all('ZREM', spilled, done)
  until #members < BLOCKS
end

-- Blocks of ids that no record speaks of once `old` has become `record`, or is removed.
local function old_ids(key, old, record, list)
  local from, behind = ids_range(old)
  local to = behind + BLOCK - 1
  if record and has(byte(record, 2), IDS) then
    to = ids_range(record)
    if to > from and to <= EXACT and to % BLOCK > 0 then
      ids_cut[#ids_cut + 1] = {id_block(key, math.floor(to / BLOCK)), to % BLOCK * ID}
    end
  end
  for block = math.floor(from / BLOCK), math.floor(math.min(to, behind + BLOCK - 1) / BLOCK) - 1 do
    list[#list + 1] = id_block(key, block)
  end
end

-- Ids at their places in blocks; what lies behind the last one is of a commit that was not made.
local function put_ids(key, taken)
  local block, value
  for at = 1, #taken, 8 + ID do
    local sequence = unpack8('<I8', taken, at)
    local this, start = math.floor(sequence / BLOCK), sequence % BLOCK * ID
    if this ~= block then
      if block then
        put(ids_put, id_block(key, block), value)
      end
      block, value = this, start > 0 and redis.call('HGET', ids, id_block(key, this)) or ''
    end
    value = sub(value, 1, start)
    value = value .. string.rep('\0', start - #value) .. sub(taken, at + 8, at + 7 + ID)
  end
  if block then
    put(ids_put, id_block(key, block), value)
  end
end

local function put_spilled(key, record, old, extra)
  local has_old, has_new = old and has(byte(old, 2), SPILLED), has(byte(record, 2), SPILLED)
  if has_new and not has_old then
    -- What there may be of this key has outlived a crash.
    drop_spilled(key)
  end
  if has_new or has_old then
    spilled_done[#spilled_done + 1] =
      {key, has_new and string.reverse(sub(record, NEXT, NEXT + 7)) or nil}
  end
  local by_key, last = spilled_by(key), nil
  for _, event in ipairs(extra and extra.spill or {}) do
    put(main, 'e' .. key .. event[1], event[2])
    local block = spill_block(event[1])
    if block ~= last then
      put(spilled_put, 0, by_key .. block)
      last = block
    end
  end
end

-- The record with its times and the state that it keeps, and all that lies beside a job that has
-- more than a record and a small state, or had.
local function write_rare(i, op, key, record, old)
  local flags = byte(record, 2)
  if expired[i] then
    drop_spilled(key)
    if has(byte(expired[i], 2), IDS) then
      local blocks = {}
      old_ids(key, expired[i], nil, blocks)
      with_all('HDEL', ids, blocks)
    end
  end
  local before = old or expired[i]
  local old_flags = before and byte(before, 2) or 0
  local due_at, expire_at, entry = 0, 0, before and unpack8('<I8', before, ENTRY) or 0
  if has(flags, DUE) then
    due_at = wall + unpack8('<I8', record, DUE_AT)
    local is_later = old and has(old_flags, DUE) and unpack8('<I8', old, DUE_AT) < due_at
    -- An entry must never be later than its record.
    put(is_later and due_later or due_put, due_at, key)
  elseif has(old_flags, DUE) then
    due_gone[#due_gone + 1] = key
  end
  if has(flags, EXPIRES) then
    expire_at = wall + unpack8('<I8', record, END)
    -- An entry that comes too early is moved when it is met.
    if entry == 0 or entry > expire_at then
      put(expiry_put, expire_at, key)
      entry = expire_at
    end
  elseif entry ~= 0 then
    expiry_gone[#expiry_gone + 1] = key
    entry = 0
  end
  local extra, state = extras[i], ''
  put_spilled(key, record, old, extra)
  if old and has(old_flags, IDS) then
    old_ids(key, old, record, ids_gone)
  end
  if extra and extra.ids then
    put_ids(key, extra.ids)
  end
  if extra and extra.letters then
    for _, place in ipairs(extra.consumed) do
      consumed[place] = true
    end
    put_letters(extra.letters)
  end
  if op == PUT_BESIDE then
    put(main, 's' .. key, beside[i])
  elseif op == KEEP and old and has(old_flags, STATE) then
    flags, state = flags + STATE, sub(old, state_at(old))
  elseif op == KEEP and old and has(old_flags, LARGE) then
    flags = flags + LARGE
  elseif has(old_flags, LARGE) then
    gone[#gone + 1] = 's' .. key
  end
  return char(RECORD_FORMAT, flags) .. pack('<I8I8I8', due_at, expire_at, entry)
    .. sub(record, LENGTH) .. state
end

local any_new = false
for i = 1, count do
  if not refused[i] then
    local at = (i - 1) * OP_SIZE
    local op, flags = byte(ops, at + 1, at + 2)
    local field, record, old = ARGV[field_at + i], ARGV[record_at + i], olds[i]
    if has(flags, NEW) then
      any_new = true
      record = sub(record, 1, INCARNATION - 1) .. now8 .. sub(record, INCARNATION + 8)
    end
    if has(flags, TROUBLED) then
      record = sub(record, 1, SINCE - 1) .. now8 .. sub(record, SINCE + 8)
    end
    if has(flags, NEW_GAPS) then
      record = sub(record, 1, GAPS_TIME - 1) .. now8 .. sub(record, GAPS_TIME + 8)
    end
    -- Nearly all have a small state before and after, and nothing else.
    if byte(record, 2) ~= STATE or extras[i] or expired[i] or (old and byte(old, 2) ~= STATE) then
      record = write_rare(i, op, sub(field, 2), record, old)
    end
    main[#main + 1] = field
    main[#main + 1] = record
  end
end
put_letters(free_letters)
for place in pairs(consumed) do
  put(main, 'l' .. place, '')
end
if messages ~= '' then
  local time = any_new and char(OUTBOX_TIME) .. now8 or ''
  put(main, 'o' .. partition .. ':' .. number, time .. messages)
elseif first_in_outbox == tonumber(number) then
  put(main, 'q' .. partition, text(tonumber(number) + 1))
end
local reply = now8 .. pack('<I4', #refusals) .. table.concat(refusals)
  .. pack('<I4', #known) .. table.concat(known) .. table.concat(present)
put(main, 'f' .. partition, sub(fence, 1, FENCE_NUMBER - 1) .. number8 .. reply)

with_all('ZADD', due, due_put)
with_all('ZADD', expiry, expiry_put)
with_all('ZADD', letters_index, letters_put)
with_all('ZADD', letters_age, age_put)
with_all('ZADD', spilled, spilled_put)
with_all('HSET', ids, ids_put)
if #early + #main > MOST then
  with_all('HSET', data, early)
else
  for i = 1, #early do
    main[#main + 1] = early[i]
  end
end
redis.call('HSET', data, unpack(main))

-- Committed. What follows only removes.
local function remove_letters(places)
  local fields = {}
  for i = 1, #places do
    fields[i] = 'l' .. places[i]
  end
  with_all('HDEL', data, fields)
  with_all('ZREM', letters_index, places)
  with_all('ZREM', letters_age, places)
end

with_all('HDEL', data, gone)
with_all('ZADD', due, due_later)
with_all('ZREM', due, due_gone)
with_all('ZREM', expiry, expiry_gone)
with_all('HDEL', ids, ids_gone)
for _, cut in ipairs(ids_cut) do
  local block, start = redis.call('HGET', ids, cut[1]), cut[2]
  if block then
    redis.call('HSET', ids, cut[1], string.rep('\0', start) .. sub(block, start + 1))
  end
end
local letters_gone = {}
for place in pairs(consumed) do
  letters_gone[#letters_gone + 1] = place
end
remove_letters(letters_gone)
for _, done in ipairs(spilled_done) do
  drop_spilled(done[1], done[2])
end

-- Some of what has expired, more than can come to be in one commit. Until then it is invisible.
-- Answers how many fields beside a job's were removed.
local function sweep_job(key)
  local record = redis.call('HGET', data, 'j' .. key)
  local expires = record and is_sound(record) and has(byte(record, 2), EXPIRES)
  if expires and not has_expired(record, wall) then
    -- Its entry was too early.
    local at = sub(record, END, END + 7)
    redis.call('ZADD', expiry, unpack8('<I8', at), key)
    redis.call('HSET', data, 'j' .. key, sub(record, 1, ENTRY - 1) .. at .. sub(record, LENGTH))
    return 0
  end
  local blocks = {}
  if expires then
    -- What lies beside it first, so that nothing is left that nobody speaks of.
    drop_spilled(key)
    if has(byte(record, 2), IDS) then
      old_ids(key, record, nil, blocks)
      with_all('HDEL', ids, blocks)
    end
    redis.call('HDEL', data, 'j' .. key, 's' .. key)
    redis.call('ZREM', due, key)
  end
  -- What cannot be read stays, for people to look at.
  redis.call('ZREM', expiry, key)
  return #blocks
end

local sweep, removed = 16 + 2 * count, 0
for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', wall, 'LIMIT', 0, sweep)) do
  removed = removed + sweep_job(key)
  if removed >= MANY then
    -- The next commit goes on.
    break
  end
end
local old_letters = {}
for _, place in ipairs(redis.call('ZRANGEBYSCORE', letters_age, '-inf', wall - dead_ttl, 'LIMIT', 0, sweep)) do
  local letter = redis.call('HGET', data, 'l' .. place)
  local put_at = letter and #letter >= LETTER_TIME + 8 and unpack8('<I8', letter, LETTER_TIME) or 0
  if put_at > wall - dead_ttl then
    redis.call('ZADD', letters_age, put_at, place)
  else
    old_letters[#old_letters + 1] = place
  end
end
remove_letters(old_letters)
return 'A' .. reply
