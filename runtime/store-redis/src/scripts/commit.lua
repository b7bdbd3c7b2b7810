-- Commits a batch: all its writes, except the refused writes. The script refuses a write in three cases:
--
-- - the condition of the write does not hold;
-- - the key of the write is too long, or the stored record of the key is damaged;
-- - the write belongs to an older rollout than the stored record.
--
-- Key records with their states, spilled events, dead letters, messages and the fence are fields of one hash, and one
-- HSET writes all of them. This HSET makes the commit. The script writes index entries and blocks of ids before the
-- HSET. At that time, no record refers to them. If the script fails, the next call with this commit overwrites them. If
-- a batch has more fields than fit into one HSET, the script also writes the letters before that HSET. The script
-- removes fields and index entries after the HSET, when no record refers to them any more. Before the HSET, the script
-- removes only the data of expired records, and data that earlier calls have left. The stored data is therefore correct
-- even if the script ends half-way, or if a restarted server reads its append-only file only up to a point within the
-- script. If the script fails, Ordain can therefore send the same commit again.
--
-- Lua allows at most 200 locals in the main chunk. A local that only one phase needs is therefore declared in the `do`
-- block of that phase.

-- The maximum number of arguments of the HSET that makes the commit: nearly the capacity of Lua's stack. The Rust
-- constant `REDIS_BATCH_LIMIT` depends on this number.
local HSET_ARGUMENT_LIMIT = 7900

local data, due, expiry, letters_index, letters_age, spilled, ids = unpack(KEYS)
local partition, number8, number = ARGV[2], ARGV[4], ARGV[6]
local dead_ttl, count, ops, messages = tonumber(ARGV[7]), tonumber(ARGV[8]), ARGV[9], ARGV[11]
local field_at, record_at = 14, 14 + count
local rest = record_at + count

local function next_argument()
  rest = rest + 1
  return ARGV[rest]
end

local fence, _, first_in_outbox = read_fence(data, partition)
do
  local claim, before8 = ARGV[3], ARGV[5]
  if not fence then
    return 'N'
  end
  if claim_of(fence) ~= claim or number8 == NO_NUMBER then
    return 'C' .. fence
  end
  local last8 = sub(fence, layout.FENCE_NUMBER, layout.FENCE_ANSWER - 1)
  if last8 == number8 then
    -- The shard already has this commit. Write the fence again without a change: a caller that waits for replicas can
    -- then wait until the replicas have this write, and therefore also the commit.
    redis.call('HSET', data, 'f' .. partition, fence)
    return 'A' .. sub(fence, layout.FENCE_ANSWER)
  end
  if last8 ~= before8 then
    return 'C' .. fence
  end
end

-- The script adds the delays of timers to the server's time (`wall`). Data has expired if its expiry time is at or
-- before `expiry_now`. The life of new data begins at `life_start`. The time of the commit (`now8`) is always later
-- than the time of the previous commit in the fence, even if the server's clock has gone back. New key records get
-- `now8` as their incarnation, which distinguishes a record from an earlier record of the same key.
local wall = time_now()
local expiry_now, life_start = expiry_times(wall)
local now8 = pack('<I8', math.max(expiry_now, unpack8('<I8', fence, layout.FENCE_ANSWER) + 1))

-- For each write, the stored record of its key; false if the key has no record.
local olds = {}
for from = 1, count, ARGUMENT_LIMIT do
  local to = math.min(from + ARGUMENT_LIMIT - 1, count)
  local some = redis.call('HMGET', data, unpack(ARGV, field_at + from, field_at + to))
  for i = 1, #some do
    olds[from + i - 1] = some[i]
  end
end

-- Check each write. The index in each of these tables is the number of the write in the batch, from 1. `refused`: true
-- if the write is refused. `expired`: the stored record, if it has expired. `extras`: the data of the write besides its
-- record. `beside`: the new state, if it gets a separate field.
local refused, expired, extras, beside = {}, {}, {}, {}
-- Parts of the reply: refused writes with their reasons, and events to spill that the store already has.
local refusals, present = {}, {}
-- The encoded letters that the commit puts into its outbox entry.
local pieces = {}
do
  -- Reads the data of a write besides its record: letters, spilled events and ids.
  local function read_extra(flags)
    local extra = {}
    if has(flags, layout.LETTERS) then
      extra.consumed, extra.letters = {}, {}
      for i = 1, tonumber(next_argument()) do
        extra.consumed[i] = next_argument()
      end
      for i = 1, tonumber(next_argument()) do
        extra.letters[i] = {next_argument(), next_argument(), next_argument()}
      end
    end
    if has(flags, layout.SPILL) then
      extra.spill = {}
      for i = 1, tonumber(next_argument()) do
        -- The sequence; the digest of the event, followed by the event; and all digests under which the store may have
        -- the event.
        extra.spill[i] = {next_argument(), next_argument(), next_argument()}
      end
    end
    if has(flags, layout.TAKES_IDS) then
      extra.ids = next_argument()
    end
    return extra
  end

  -- Returns whether the new record belongs to an older rollout than the stored record.
  local function is_older(old, new)
    local at = layout.ROLLOUT
    return sub(old, at, at + 7) ~= sub(new, at, at + 7) and unpack8('<I8', old, at) > unpack8('<I8', new, at)
  end

  -- Returns the reason why a write is refused, encoded as the fence stores it; nil if the write is accepted.
  local function refusal(at, old, flags, new)
    if not old then
      return not has(flags, layout.ABSENT) and char(layout.REFUSED_ABSENT) or nil
    end
    local is = sub(old, layout.PARTITION, layout.NEXT + 7)
    local expected = sub(ops, at + 3, at + layout.OP_SIZE)
    if is == expected and not has(flags, layout.ABSENT) then
      return is_older(old, new) and char(layout.REFUSED_VERSION) or nil
    end
    -- If the write expects no key record, its condition has no number of take-overs, so compare only the partition.
    -- Otherwise, compare the partition and the number of take-overs.
    local owner = (has(flags, layout.ABSENT) and layout.TAKEOVERS or layout.NEXT) - layout.PARTITION
    local same_owner = sub(is, 1, owner) == sub(expected, 1, owner)
    return char(same_owner and layout.REFUSED_NEXT or layout.REFUSED_PARTITION)
      .. sub(old, layout.NEXT, layout.NEXT + 7)
  end

  -- Returns the encoded reason of a refusal because of damaged data or a key that is too long.
  local function corrupt(words)
    return char(layout.REFUSED_CORRUPT) .. pack('<I4', #words) .. words
  end

  -- Removes from a write the events to spill that the store already has. The reply names these events, each with a
  -- flag: 1 if the stored event is the same event, otherwise 0.
  local function find_present(i, key, extra, old)
    local new, last = {}, spilled_and_first(old)
    for _, event in ipairs(extra.spill) do
      -- Usually the sequence is higher than the sequences of all stored events. The script then need not check whether
      -- the store has the event.
      local may_be = last >= EXACT or unpack8('>I8', event[1]) <= last
      local there = may_be and redis.call('HGET', data, 'e' .. key .. event[1])
      if there then
        local digest, digests, same = sub(there, 1, 8), event[3], false
        for at = 1, #digests, 8 do
          same = same or digest == sub(digests, at, at + 7)
        end
        present[#present + 1] =
          pack('<I4', i - 1) .. string.reverse(event[1]) .. char(same and 1 or 0)
      else
        new[#new + 1] = event
      end
    end
    extra.spill = new
  end

  for i = 1, count do
    local at = (i - 1) * layout.OP_SIZE
    local op, flags = byte(ops, at + 1, at + 2)
    if op == layout.PUT_BESIDE then
      beside[i] = next_argument()
    end
    local extra = flags >= layout.LETTERS and read_extra(flags) or nil
    extras[i] = extra
    local old, why = olds[i]
    if #ARGV[field_at + i] > layout.KEY_LIMIT + 1 then
      local size = #ARGV[field_at + i] - 1
      why = corrupt('the key has ' .. size .. ' bytes; at most ' .. layout.KEY_LIMIT .. ' bytes are allowed')
    elseif old and not is_sound(old) then
      why = corrupt('the record of the key is damaged, or has a format that this version of Ordain does not read')
    else
      if old and has_expired(old, expiry_now) then
        expired[i], olds[i], old = old, false, false
      end
      why = refusal(at, old, flags, ARGV[record_at + i])
      if not why and op == layout.KEEP and old and state_at(old) > #old + 1 then
        why = corrupt('the record of the key is cut off')
      end
    end
    if why then
      refused[i] = true
      refusals[#refusals + 1] = pack('<I4', i - 1) .. why
    elseif extra then
      if extra.spill and old and has(byte(old, 2), layout.SPILLED) then
        restore_spilled_index(data, spilled, sub(ARGV[field_at + i], 2), old)
        find_present(i, sub(ARGV[field_at + i], 2), extra, old)
      end
      for _, letter in ipairs(extra.letters or {}) do
        pieces[#pieces + 1] = letter[3]
      end
    end
  end
end

-- Remove the messages of refused writes from the outbox entry.
if #refusals > 0 then
  local lengths, chunks, from = ARGV[10], {}, 1
  for i = 1, count do
    local length = unpack8('<I4', lengths, (i - 1) * 4 + 1)
    if length > 0 and not refused[i] then
      chunks[#chunks + 1] = sub(messages, from, from + length - 1)
    end
    from = from + length
  end
  messages = table.concat(chunks)
end

-- The reply names the orphan dead letters (letters that belong to no write) that the store already has. If the stream
-- forwards dead letters, the outbox gets only the others.
local orphan_letters, known = {}, {}
do
  local orphan_count, forward, seen = tonumber(ARGV[12]), ARGV[13] == '1', {}

  -- Returns whether the store has an unexpired letter with this place (its sort key), or an earlier orphan letter of
  -- this batch has the same place.
  local function is_known(place)
    if seen[place] then
      return true
    end
    local there = redis.call('HGET', data, 'l' .. place)
    return there and #there >= layout.LETTER_TIME + 8
      and unpack8('<I8', there, layout.LETTER_TIME) + dead_ttl > expiry_now
  end

  for i = 1, orphan_count do
    local place = next_argument()
    orphan_letters[i] = {place, next_argument(), next_argument()}
    if is_known(place) then
      known[#known + 1] = pack('<I4', i - 1)
    elseif forward then
      pieces[#pieces + 1] = orphan_letters[i][3]
    end
    seen[place] = true
  end
end
if table.concat(pieces) ~= '' then
  messages = messages .. char(layout.OUTBOX_LETTERS) .. table.concat(pieces)
end

-- From here on the script writes. Because of this first write, each commit is a transaction of at least two commands in
-- the server's append-only file. The end of this transaction also ends a transaction that an earlier crash may have
-- left open (see docs/internals/storage.md).
redis.call('HSET', data, 'b' .. partition, number)

local main = {}

local function put_field(field, value)
  main[#main + 1] = field
  main[#main + 1] = value
end

-- One list of arguments for each command before or after the HSET that makes the commit. `add` creates the lists,
-- because most commits need only a few of them.
local lists = {}

local function add(name, first, second)
  local list = lists[name]
  if not list then
    list = {}
    lists[name] = list
  end
  list[#list + 1] = first
  if second then
    list[#list + 1] = second
  end
end

local function run(command, key, name)
  if lists[name] then
    with_all(command, key, lists[name])
  end
end

-- Removes the spilled events of a key with sequences below `before`, and their index entries. Without `before`, removes
-- all spilled events of the key.
local function drop_spilled(key, before)
  -- The number of blocks that one pass of the loop removes.
  local blocks = 64
  local by_key = spilled_by(key)
  local behind = before and by_key .. spill_block(before)
  local to = '[' .. (behind or by_key .. string.rep('\255', 8))
  repeat
    local members = redis.call('ZRANGEBYLEX', spilled, '[' .. by_key, to, 'LIMIT', 0, blocks)
    local fields, done = {}, {}
    for _, member in ipairs(members) do
      for _, sequence in ipairs(sequences_of(member, by_key)) do
        if not before or is_after(before, sequence) then
          fields[#fields + 1] = 'e' .. key .. sequence
        end
      end
      -- Keep the block that contains `before`, because it may also have later events.
      if member ~= behind then
        done[#done + 1] = member
      end
    end
    with_all('HDEL', data, fields)
    with_all('ZREM', spilled, done)
  until #members < blocks
end

-- Finds the blocks of ids that the key no longer needs when `record` replaces the record `old`, and appends their
-- fields to a list. If `record` is nil, the key needs no block. If the key needs only the end of a block, adds this
-- block to the list `ids_cut`.
local function old_ids(key, old, record, list)
  local from, behind = ids_range(old)
  local to = behind + layout.BLOCK - 1
  if record and has(byte(record, 2), layout.IDS) then
    to = ids_range(record)
    if to > from and to <= EXACT and to % layout.BLOCK > 0 then
      add('ids_cut', {id_block(key, math.floor(to / layout.BLOCK)), to % layout.BLOCK * layout.ID})
    end
  end
  local last = math.floor(math.min(to, behind + layout.BLOCK - 1) / layout.BLOCK) - 1
  for block = math.floor(from / layout.BLOCK), last do
    list[#list + 1] = id_block(key, block)
  end
end

local function remove_letters(places)
  local fields = {}
  for i = 1, #places do
    fields[i] = 'l' .. places[i]
  end
  with_all('HDEL', data, fields)
  with_all('ZREM', letters_index, places)
  with_all('ZREM', letters_age, places)
end

local reply
do
  local consumed = {}
  local life_start8 = pack('<I8', life_start)

  -- Collects the writes of new letters. If the batch has more fields than fit into one HSET, the script writes the new
  -- letters in separate commands before the HSET that makes the commit. This is safe, because no key record depends on
  -- a letter.
  local function put_letters(letters)
    for _, letter in ipairs(letters) do
      local place, record, at = letter[1], letter[2], layout.LETTER_TIME
      add('early', 'l' .. place, sub(record, 1, at - 1) .. life_start8 .. sub(record, at + 8))
      add('letters_put', 0, place)
      add('age_put', life_start, place)
      consumed[place] = nil
    end
  end

  -- Puts ids into their places in the blocks, and collects the writes of these blocks. Drops the stored ids that follow
  -- a new id in its block: an earlier call may have written them, and failed before its commit.
  local function put_ids(key, taken)
    local block, value
    for at = 1, #taken, 8 + layout.ID do
      local sequence = unpack8('<I8', taken, at)
      local this, start = math.floor(sequence / layout.BLOCK), sequence % layout.BLOCK * layout.ID
      if this ~= block then
        if block then
          add('ids_put', id_block(key, block), value)
        end
        block, value = this, start > 0 and redis.call('HGET', ids, id_block(key, this)) or ''
      end
      value = sub(value, 1, start)
      value = value .. string.rep('\0', start - #value) .. sub(taken, at + 8, at + 7 + layout.ID)
    end
    if block then
      add('ids_put', id_block(key, block), value)
    end
  end

  -- Collects the writes of the new spilled events of a key, and the removal of the settled spilled events.
  local function put_spilled(key, record, old, extra)
    local has_old = old and has(byte(old, 2), layout.SPILLED)
    local has_new = has(byte(record, 2), layout.SPILLED)
    if has_new and not has_old then
      -- The key had no spilled events until now. Remove the spilled events that earlier commits should have removed,
      -- but may have left because of a crash.
      drop_spilled(key)
    end
    if has_new or has_old then
      local next_sequence = has_new and string.reverse(sub(record, layout.NEXT, layout.NEXT + 7)) or nil
      add('spilled_done', {key, next_sequence})
    end
    local by_key, last = spilled_by(key), nil
    for _, event in ipairs(extra and extra.spill or {}) do
      put_field('e' .. key .. event[1], event[2])
      local block = spill_block(event[1])
      if block ~= last then
        add('spilled_put', 0, by_key .. block)
        last = block
      end
    end
  end

  -- Handles a key that has, or had, more data than a record with a small state: collects the writes of this other data.
  -- Returns the record with its times, and with the old state if the write does not change the state.
  local function write_full_record(i, op, key, record, old)
    local flags = byte(record, 2)
    if expired[i] then
      drop_spilled(key)
      if has(byte(expired[i], 2), layout.IDS) then
        local blocks = {}
        old_ids(key, expired[i], nil, blocks)
        with_all('HDEL', ids, blocks)
      end
    end
    local before = old or expired[i]
    local old_flags = before and byte(before, 2) or 0
    local due_at, expire_at, entry = 0, 0, before and unpack8('<I8', before, layout.ENTRY) or 0
    if has(flags, layout.DUE) then
      due_at = wall + unpack8('<I8', record, layout.DUE_AT)
      local is_later = old and has(old_flags, layout.DUE) and unpack8('<I8', old, layout.DUE_AT) < due_at
      -- The time of an index entry must never be later than the time in the record. If an entry moves to a later time,
      -- the script therefore writes the entry after the commit.
      add(is_later and 'due_later' or 'due_put', due_at, key)
    elseif has(old_flags, layout.DUE) then
      add('due_removed', key)
    end
    if has(flags, layout.EXPIRES) then
      expire_at = life_start + unpack8('<I8', record, layout.END)
      -- If the existing entry has an earlier time, the entry stays. When that time comes, the sweep moves the entry.
      if entry == 0 or entry > expire_at then
        add('expiry_put', expire_at, key)
        entry = expire_at
      end
    elseif entry ~= 0 then
      add('expiry_removed', key)
      entry = 0
    end
    local extra, state = extras[i], ''
    put_spilled(key, record, old, extra)
    if old and has(old_flags, layout.IDS) then
      lists.ids_removed = lists.ids_removed or {}
      old_ids(key, old, record, lists.ids_removed)
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
    if op == layout.PUT_BESIDE then
      put_field('s' .. key, beside[i])
    elseif op == layout.KEEP and old and has(old_flags, layout.STATE) then
      flags, state = flags + layout.STATE, sub(old, state_at(old))
    elseif op == layout.KEEP and old and has(old_flags, layout.LARGE) then
      flags = flags + layout.LARGE
    elseif has(old_flags, layout.LARGE) then
      add('removed', 's' .. key)
    end
    return char(layout.RECORD_FORMAT, flags) .. pack('<I8I8I8', due_at, expire_at, entry)
      .. sub(record, layout.LENGTH) .. state
  end

  local any_new = false
  for i = 1, count do
    if not refused[i] then
      local at = (i - 1) * layout.OP_SIZE
      local op, flags = byte(ops, at + 1, at + 2)
      local field, record, old = ARGV[field_at + i], ARGV[record_at + i], olds[i]
      if has(flags, layout.NEW) then
        any_new = true
        record = sub(record, 1, layout.INCARNATION - 1) .. now8 .. sub(record, layout.INCARNATION + 8)
      end
      if has(flags, layout.NEW_FAILURE) then
        record = sub(record, 1, layout.SINCE - 1) .. now8 .. sub(record, layout.SINCE + 8)
      end
      if has(flags, layout.NEW_GAPS) then
        record = sub(record, 1, layout.GAPS_TIME - 1) .. now8 .. sub(record, layout.GAPS_TIME + 8)
      end
      -- Most keys have a small state before and after the commit, and no other data. Only the remaining keys need
      -- `write_full_record`.
      if byte(record, 2) ~= layout.STATE or extras[i] or expired[i]
        or (old and byte(old, 2) ~= layout.STATE) then
        record = write_full_record(i, op, sub(field, 2), record, old)
      end
      main[#main + 1] = field
      main[#main + 1] = record
    end
  end
  put_letters(orphan_letters)
  for place in pairs(consumed) do
    put_field('l' .. place, '')
    add('letters_removed', place)
  end
  if messages ~= '' then
    local time = any_new and char(layout.OUTBOX_TIME) .. now8 or ''
    put_field('o' .. partition .. ':' .. number, time .. messages)
  elseif first_in_outbox == tonumber(number) then
    put_field('q' .. partition, text(tonumber(number) + 1))
  end
  reply = now8 .. pack('<I4', #refusals) .. table.concat(refusals)
    .. pack('<I4', #known) .. table.concat(known) .. table.concat(present)
  -- If the owner repeats a lost commit, write the time. A shard that has lost commits may also have lost numbers of
  -- messages, so `assign.lua` reads the time of the last repeated commit.
  if ARGV[14] == '1' then
    put_field('r', life_start8)
  end
  put_field('f' .. partition, sub(fence, 1, layout.FENCE_NUMBER - 1) .. number8 .. reply)

  -- Write the indexes first. The HSET at the end then writes all fields in one step, and makes the commit.
  run('ZADD', due, 'due_put')
  run('ZADD', expiry, 'expiry_put')
  run('ZADD', letters_index, 'letters_put')
  run('ZADD', letters_age, 'age_put')
  run('ZADD', spilled, 'spilled_put')
  run('HSET', ids, 'ids_put')
  local early = lists.early or {}
  if #early + #main > HSET_ARGUMENT_LIMIT then
    with_all('HSET', data, early)
  else
    for i = 1, #early do
      main[#main + 1] = early[i]
    end
  end
  redis.call('HSET', data, unpack(main))
end

-- The batch is committed. From here on the script only removes old data, and moves entries of indexes to later times.
run('HDEL', data, 'removed')
run('ZADD', due, 'due_later')
run('ZREM', due, 'due_removed')
run('ZREM', expiry, 'expiry_removed')
run('HDEL', ids, 'ids_removed')
for _, cut in ipairs(lists.ids_cut or {}) do
  local block, start = redis.call('HGET', ids, cut[1]), cut[2]
  if block then
    redis.call('HSET', ids, cut[1], string.rep('\0', start) .. sub(block, start + 1))
  end
end
if lists.letters_removed then
  remove_letters(lists.letters_removed)
end
for _, done in ipairs(lists.spilled_done or {}) do
  drop_spilled(done[1], done[2])
end

-- Sweep: remove a limited number of expired key records, and a limited number of expired letters. Each limit exceeds
-- the number of records or letters that this commit has added, so that the sweep keeps up with the commits. Readers
-- ignore expired data that still exists.
do
  local sweep, removed = 16 + 2 * count, 0
  -- The list `letters_put` has two arguments for each new letter.
  local letters_sweep = sweep + #(lists.letters_put or {})

  -- Handles a key whose entry in the expiry index has reached its time. Removes an expired record with its state, ids
  -- and spilled events. If the record expires later, moves the entry; in all other cases, removes only the entry.
  -- Returns the number of removed blocks of ids.
  local function sweep_key(key)
    local record = redis.call('HGET', data, 'j' .. key)
    local expires = record and is_sound(record) and has(byte(record, 2), layout.EXPIRES)
    if expires and not has_expired(record, expiry_now) then
      -- The record expires later than its entry. Move the entry to the expiry time in the record.
      local at = sub(record, layout.END, layout.END + 7)
      redis.call('ZADD', expiry, unpack8('<I8', at), key)
      redis.call('HSET', data, 'j' .. key, sub(record, 1, layout.ENTRY - 1) .. at .. sub(record, layout.LENGTH))
      return 0
    end
    local blocks = {}
    if expires then
      -- Remove the record last. If this sweep ends half-way, the record still exists, so another sweep can find the
      -- other data of the key.
      drop_spilled(key)
      if has(byte(record, 2), layout.IDS) then
        old_ids(key, record, nil, blocks)
        with_all('HDEL', ids, blocks)
      end
      redis.call('HDEL', data, 'j' .. key, 's' .. key)
      redis.call('ZREM', due, key)
    end
    -- Remove the entry. If the record is unreadable, the record stays, so that an operator can examine it.
    redis.call('ZREM', expiry, key)
    return #blocks
  end

  for _, key in ipairs(redis.call('ZRANGEBYSCORE', expiry, '-inf', expiry_now, 'LIMIT', 0, sweep)) do
    removed = removed + sweep_key(key)
    if removed >= ENTRY_LIMIT then
      -- The sweep of the next commit removes the remaining keys.
      break
    end
  end

  local old_letters, before = {}, expiry_now - dead_ttl
  for _, place in ipairs(redis.call('ZRANGEBYSCORE', letters_age, '-inf', before, 'LIMIT', 0, letters_sweep)) do
    local letter = redis.call('HGET', data, 'l' .. place)
    local is_whole = letter and #letter >= layout.LETTER_TIME + 8
    local put_at = is_whole and unpack8('<I8', letter, layout.LETTER_TIME) or 0
    if put_at > before then
      redis.call('ZADD', letters_age, put_at, place)
    else
      old_letters[#old_letters + 1] = place
    end
  end
  remove_letters(old_letters)
end
return 'A' .. reply
