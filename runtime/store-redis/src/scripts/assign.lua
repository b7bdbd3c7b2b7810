-- Assigns messages to a destination (an exchange, a stream or a file). If the rules of the destination require these
-- steps, the script numbers the messages, retains them for replay, and puts them into the queues of a stream. One HSET
-- writes the results of all these steps. After this HSET, the script removes expired fields, and other fields that are
-- no longer needed.
--
-- The origin of messages is the outbox from which an owner sends the messages: the outbox of one stream, partition and
-- shard. The messages of a producer have no origin.
--
-- Fields of the hash:
--
-- c KEY               the counter of a key: the next number, and the time when the counter expires
-- m KEY SEQUENCE      a retained message
-- i KEY ID            a producer's id
-- o ORIGIN            the record of an origin: for example, the last outbox position whose messages are assigned
-- p NUMBER:ORIGIN     a block of an origin: the ids and numbers of the messages that were new in one call
-- q PARTITION         the ends of a partition's queue: two numbers and two history digests
-- n PARTITION:NUMBER  an entry of a partition's queue: its history digest, then the event
-- w                   the number of waiting events of all partitions
-- r WRITER            the record of a writer of queue entries: the expiry time of the record, and the writer's calls
-- a, d, e NUMBER      blocks of three lists of expiring fields; the fields of a block expire together
-- A, D, E             the first and the last block of each list, and the expiry time of the first block
-- b                   the time of the last call, and the time of `writer_clock` at the last call
--
-- Lua allows at most 200 locals in the main chunk. A local that only one phase needs is therefore declared in the `do`
-- block of that phase.
local log = KEYS[1]
local numbered, first, retain = ARGV[2] == '1', tonumber(ARGV[3]), tonumber(ARGV[4])
local retain_events, ttl, limit = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
-- `nonce` is a random number that the caller chooses for this call. The script puts it into the history digests of the
-- new queue entries. If the store goes back in time, a later call may write entries with the numbers of the lost
-- entries. Because of its nonce, the history digests of its entries differ from those of the lost entries.
local nonce, count, argument = ARGV[8], tonumber(ARGV[16]), 16
-- The id of the writer that makes this call, and the number that the writer gave to the call. `call_number` is nil if
-- no writer makes the call, for example if the messages come from owners.
local writer, call_number = ARGV[13], tonumber(ARGV[14])
local now = time_now()
local expiry_now, life_start = expiry_times(now)
-- The clock by which the records of writers expire. Each call advances this clock by the time since the previous call,
-- but by at most five minutes, and never sets the clock back. If the server's clock jumps, the records therefore do not
-- all expire at the same time.
local writer_clock = now
do
  local CLOCK_STEP_LIMIT = 5 * 60 * 1000
  local last, clock = string.match(redis.call('HGET', log, 'b') or '', '^(%d+) (%d+)$')
  if last and tonumber(clock) < EXACT / 2 then
    writer_clock = tonumber(clock) + math.min(math.max(now - tonumber(last), 0), CLOCK_STEP_LIMIT)
  end
end

local function next_argument()
  argument = argument + 1
  return ARGV[argument]
end

-- The description of a message begins with two flags. The first flag is 1 if the message has its own number. It is 2 if
-- a producer repeats a lost message, which may get only the number that it had before the loss. The second flag is 1 if
-- the message is the last message of its key. The other parts are: the partition; the content digest; the digest of the
-- id (for a producer's message, of source and id); the first bytes of the event; the message's own number; the digest
-- of the id alone, which earlier versions stored; and a list of digests of 8 bytes each, up to the end. The record of a
-- stream that reads the messages may have the same event under one of these digests, or under the content digest. The
-- parts have the following offsets:
local PARTITION_IN, CONTENT_IN, ID_IN, HEAD_IN, OWN_IN, EARLIER_ID_IN, DIGESTS_IN = 3, 7, 15, 23, 25, 33, 41
-- A duration, in ms, that is longer than any retention time.
local EXPIRY_DELAY_LIMIT_MS = 2 ^ 42
local NEW, KNOWN, BEHIND = char(0), char(1), char(3) .. NO_NUMBER

if not has_witness(log, ARGV[9], ARGV[10], ARGV[11], ARGV[12]) then
  return 'W'
end

-- The record of the writer, with the number of this call added. The script writes this number together with the entries
-- of the call, so a store that loses the entries loses the number too.
local writer_expires, writer_ranges
-- True if the record already has the number of this call. In this case, the writer has repeated the call, because it
-- received no reply to an earlier try.
local is_repeated = false

local function pack_writer(expires)
  local encoded = {pack('<I8', expires)}
  for i, range in ipairs(writer_ranges) do
    encoded[i + 1] = pack('<I8I8', range.first, range.last)
  end
  return table.concat(encoded)
end

if call_number then
  -- The maximum number of ranges of calls in a record. Above the limit, the script joins the first two ranges. From
  -- then on, the calls between these two ranges count as processed.
  local RANGES_LIMIT = 64
  writer_expires, writer_ranges = read_writer(log, writer)
  -- Find the last range that begins at or before the number of this call; `at` is 0 if there is no such range.
  local at = #writer_ranges
  while at > 0 and writer_ranges[at].first > call_number do
    at = at - 1
  end
  local before, after = writer_ranges[at], writer_ranges[at + 1]
  is_repeated = before and before.last >= call_number
  if not is_repeated then
    local is_beside = before and before.last + 1 == call_number
    if after and after.first - 1 == call_number then
      after.first = is_beside and before.first or call_number
      if is_beside then
        table.remove(writer_ranges, at)
      end
    elseif is_beside then
      before.last = call_number
    else
      table.insert(writer_ranges, at + 1, {first = call_number, last = call_number})
    end
  end
  if #writer_ranges > RANGES_LIMIT then
    writer_ranges[2].first = writer_ranges[1].first
    table.remove(writer_ranges, 1)
  end
end

local function is_own(description)
  return byte(description, 1) == 1
end

-- Returns whether the description of a message contains the only number that the message may get.
local function names_lost_number(description)
  return byte(description, 1) == 2
end

-- Decodes a number that is stored in eight bytes. Fails if the number is `EXACT` or higher; `words` describes a correct
-- value of the field.
local function number_of(bytes, from, field, words)
  local number = unpack8('<I8', bytes, from)
  if number >= EXACT then
    corrupt_field(field, log, words)
  end
  return number
end

-- `main` has the fields and values of the HSET. `removed_fields` has the fields that the script removes after the HSET.
local main, removed_fields = {}, {}
local function put(field, value)
  main[#main + 1] = field
  main[#main + 1] = value
end

-- The groups of the call. A group comes from an owner, or, if its origin is empty, from a producer. `chunk.from` is the
-- index of the argument before the messages of the chunk. A message has three arguments: its key, its description, and
-- the bytes of the encoded event that follow its number.
local groups = {}
for i = 1, count do
  local group = {origin = next_argument(), epoch = tonumber(next_argument()),
    claimed_commit = tonumber(next_argument()), confirmed_commit = tonumber(next_argument()),
    confirmed_chunk = tonumber(next_argument()), published_commit = tonumber(next_argument()), chunks = {}}
  for j = 1, tonumber(next_argument()) do
    local chunk = {commit = tonumber(next_argument()), number = tonumber(next_argument()),
      size = tonumber(next_argument()), from = argument}
    argument = argument + 3 * chunk.size
    group.chunks[j] = chunk
  end
  groups[i] = group
end

-- Calls `visit` with the key and the description of each message of the call, in order.
local function each_message(visit)
  for _, group in ipairs(groups) do
    for _, chunk in ipairs(group.chunks) do
      for from = chunk.from + 1, chunk.from + 3 * chunk.size, 3 do
        visit(ARGV[from], ARGV[from + 1])
      end
    end
  end
end

-- The queues of the partitions that the messages of this call name. A key of the table is the number of a partition, in
-- the form of the four bytes in the description of a message. The value is the queue of the partition.
local queues = {}
if limit then
  local is_full = false
  each_message(function(_, description)
    local partition8 = sub(description, PARTITION_IN, PARTITION_IN + 3)
    if not queues[partition8] then
      local queue = read_queue(log, text(unpack8('<I4', partition8)))
      queues[partition8] = queue
      is_full = is_full or queue.last + 1 - queue.first >= limit
    end
  end)
  -- A writer repeats a refused call under the same number. The record of the writer must not contain this number, so
  -- return without writing the record.
  if is_full and not is_repeated then
    return 'F'
  end
end

local function is_after_position(commit, chunk, other_commit, other_chunk)
  return commit > other_commit or (commit == other_commit and chunk > other_chunk)
end

local RECORD, BLOCK = 'record of an origin', 'block of an origin\'s messages'
-- If an origin has at least `TRIM_BLOCKS_THRESHOLD` blocks, each group of the origin removes the oldest blocks: the
-- first block, and up to `TRIM_BLOCKS_LIMIT` blocks after it. The removal stops before the first block with an
-- unpublished message.
local TRIM_BLOCKS_THRESHOLD, TRIM_BLOCKS_LIMIT = 8, 16

-- The blocks from which this call removes messages: for the field of each block, the new content.
local shortened = {}

-- Returns the name of the field that contains a block. A block contains the ids and numbers of the messages of an
-- origin that were new in one call.
local function block_field(origin, number)
  return 'p' .. text(number) .. ':' .. origin
end

-- Returns the chunks of a block, in order.
local function chunks_of(block, field)
  local chunks, from = {}, 1
  while not block or from <= #block do
    local size = block and #block - from >= 15 and unpack8('<I4', block, from + 12)
    if not size or from + 15 + 16 * size > #block then
      corrupt_field(field, log, BLOCK)
    end
    chunks[#chunks + 1] = {commit = number_of(block, from, field, BLOCK), from = from + 16, size = size}
    from = from + 16 + 16 * size
  end
  return chunks
end

-- Returns the chunks of a block, and the bytes of the block.
local function read_block(origin, number)
  local field = block_field(origin, number)
  local block = shortened[field] or redis.call('HGET', log, field)
  return chunks_of(block, field), block
end

-- Calls `visit` for the blocks of an origin from number `from` to number `to`, until `visit` returns true.
local function each_block(origin, from, to, visit)
  for start = from, to, 16 do
    local fields = {}
    for number = start, math.min(start + 15, to) do
      fields[#fields + 1] = block_field(origin, number)
    end
    local blocks = redis.call('HMGET', log, unpack(fields))
    for i = 1, #fields do
      local block = shortened[fields[i]] or blocks[i]
      if visit(chunks_of(block, fields[i]), start + i - 1, block) then
        return
      end
    end
  end
end

-- Read the record of each origin. The record contains the epoch of the last owner, and the last outbox position whose
-- messages are assigned. Refuse a group in four cases: its epoch is lower than the epoch in the record; the store lacks
-- messages that it has already confirmed to the owner; the group comes from a stale request; or an earlier group of
-- this call has the same origin.
do
  -- Decodes the record of an origin; `found` is false if the origin has no record yet.
  local function read_record(found, field)
    if not found then
      return {epoch = 0, commit = 0, chunk = 0, highest_commit = 0, highest_chunk = 0, first = 1, next = 1, mixed = 0}
    end
    if #found ~= 50 or byte(found, 1) ~= layout.ORIGIN_FORMAT then
      corrupt_field(field, log, 'record of an origin that this version reads')
    end
    local record = {epoch = number_of(found, 2, field, RECORD), commit = number_of(found, 10, field, RECORD),
      chunk = unpack8('<I4', found, 18), highest_commit = number_of(found, 22, field, RECORD),
      highest_chunk = unpack8('<I4', found, 30), first = number_of(found, 34, field, RECORD),
      next = number_of(found, 42, field, RECORD), mixed = byte(found, 50)}
    if record.first > record.next or record.next - record.first > LENGTH_LIMIT then
      corrupt_field(field, log, RECORD)
    end
    return record
  end

  -- Removes the messages of lost commits from the blocks of an origin. A commit is lost if its number is higher than
  -- the number of the last commit that the shard had when the owner claimed the partition. If commits ascend from block
  -- to block, only the blocks at the end contain such messages; otherwise any block may contain them.
  local function drop_lost_commits(group)
    local record = group.record
    for number = record.next - 1, record.first, -1 do
      local chunks, block = read_block(group.origin, number)
      local kept_chunks = {}
      for _, chunk in ipairs(chunks) do
        if chunk.commit <= group.claimed_commit then
          -- The 16 bytes before `chunk.from` contain the outbox position and the size of the chunk.
          kept_chunks[#kept_chunks + 1] = sub(block, chunk.from - 16, chunk.from + 16 * chunk.size - 1)
        end
      end
      local field = block_field(group.origin, number)
      if #kept_chunks == 0 and number + 1 == record.next then
        removed_fields[#removed_fields + 1] = field
        record.next = number
      elseif #kept_chunks < #chunks then
        shortened[field] = table.concat(kept_chunks)
        put(field, shortened[field])
      elseif record.mixed == 0 then
        break
      end
    end
    record.highest_commit, record.highest_chunk = group.claimed_commit, 2 ^ 32 - 1
  end

  -- Decodes the record of the origin of a group. If the group is the first group of a new owner, also removes the
  -- messages of lost commits. If the group may contain messages that are already assigned, also reads the numbers of
  -- these messages. Returns the reply to a refused group; nil if the group is accepted.
  local function read_origin(group, found, field)
    local record, epoch = read_record(found, field), group.epoch
    group.record, group.known_numbers = record, {}
    if epoch < record.epoch then
      return 'C'
    end
    if group.confirmed_commit and record.epoch < epoch then
      return 'B' .. pack('<I8I4', 0, 0)
    elseif group.confirmed_commit
      and is_after_position(group.confirmed_commit, group.confirmed_chunk, record.commit, record.chunk) then
      return 'B' .. pack('<I8I4', record.commit, record.chunk)
    end
    if epoch > record.epoch and record.highest_commit > group.claimed_commit then
      drop_lost_commits(group)
    end
    group.highest_commit = record.highest_commit
    local is_behind_all = true
    for _, chunk in ipairs(group.chunks) do
      is_behind_all = is_behind_all
        and is_after_position(chunk.commit, chunk.number, record.highest_commit, record.highest_chunk)
    end
    if is_behind_all then
      return nil
    end
    -- Usually commits ascend from block to block, and a binary search finds the first block to read. But a changed
    -- configuration can route another sink to this destination. An old commit can then have messages that are new to
    -- the destination, and commits no longer ascend from block to block. In this case, the script reads all blocks.
    local is_mixed = record.mixed ~= 0
    local from, to = group.chunks[1].commit, group.chunks[#group.chunks].commit
    local low, high = record.first, record.next
    while low < high and not is_mixed do
      local middle = math.floor((low + high) / 2)
      local chunks = read_block(group.origin, middle)
      if #chunks > 0 and chunks[#chunks].commit < from then
        low = middle + 1
      else
        high = middle
      end
    end
    each_block(group.origin, low, record.next - 1, function(chunks, _, block)
      if not is_mixed and #chunks > 0 and chunks[1].commit > to then
        return true
      end
      for _, chunk in ipairs(chunks) do
        local commit = text(chunk.commit) .. ':'
        for at = chunk.from, chunk.from + 16 * chunk.size - 1, 16 do
          group.known_numbers[commit .. sub(block, at, at + 7)] = sub(block, at + 8, at + 15)
        end
      end
    end)
    -- A chunk at or before the last assigned outbox position is a repetition, so all its messages must be assigned
    -- already. If one of these messages is in no block, this message is already published, and its block was removed.
    -- The request is then stale: it arrived late, and its sender no longer waits for the reply.
    for _, chunk in ipairs(group.chunks) do
      if epoch == record.epoch and not is_after_position(chunk.commit, chunk.number, record.commit, record.chunk) then
        local commit = text(chunk.commit) .. ':'
        for at = chunk.from + 1, chunk.from + 3 * chunk.size, 3 do
          if not group.known_numbers[commit .. sub(ARGV[at + 1], ID_IN, ID_IN + 7)] then
            return 'C'
          end
        end
      end
    end
    return nil
  end

  local fields, of_field = {}, {}
  for _, group in ipairs(groups) do
    local field = 'o' .. group.origin
    if of_field[field] then
      -- A call must contain at most one group of each origin. The caller must send the second group in another call.
      group.refused = 'C'
    elseif group.origin ~= '' then
      fields[#fields + 1], of_field[field] = field, group
    end
  end
  if #fields > 0 then
    local records = redis.call('HMGET', log, unpack(fields))
    for i, field in ipairs(fields) do
      local group = of_field[field]
      group.refused = read_origin(group, records[i], field)
    end
  end
end

local answers, retained_fields, endings = {}, {}, {}
local counters, fresh, waits = {}, {}, 0

-- Read the counters of all keys together.
if numbered then
  local keys, fields = {}, {}
  each_message(function(key)
    if not counters[key] then
      counters[key] = {next = first, ends = 0}
      keys[#keys + 1], fields[#fields + 1] = key, 'c' .. key
    end
  end)
  for from = 1, #fields, ARGUMENT_LIMIT do
    local counts = redis.call('HMGET', log, unpack(fields, from, math.min(from + ARGUMENT_LIMIT - 1, #fields)))
    for i = 1, #counts do
      local found, field = counts[i], fields[from + i - 1]
      if found then
        if #found ~= 17 or byte(found, 1) ~= layout.COUNTER_FORMAT then
          corrupt_field(field, log, 'count of a key that this version reads')
        end
        local ends = number_of(found, 10, field, 'count of a key')
        if ends == 0 or ends > expiry_now then
          local counter = counters[keys[from + i - 1]]
          counter.next, counter.ends = number_of(found, 2, field, 'count of a key'), ends
        end
      end
    end
  end
end

-- Returns whether the value of a field (a retained message, an id, or the record of a writer) has not expired. The
-- value of an id ends with the expiry time. The two other kinds of values begin with the expiry time.
local function is_unexpired(field, value)
  local at = byte(field, 1) == byte('i') and 17 or 1
  local time = byte(field, 1) == byte('r') and writer_clock or expiry_now
  return #value >= at + 7 and unpack8('<I8', value, at) > time
end

-- Give each new message its number, and collect the fields to write.
do
  -- The time when the messages and ids of this call expire.
  local until8 = pack('<I8', life_start + retain)

  -- Adds a retained message or an id to the HSET, and to `fresh`, so that `retained_at` returns it within this call.
  local function put_retained(field, value)
    put(field, value)
    fresh[field] = value
  end

  -- Appends a field to a list of fields that expire together. The field consists of a kind (one letter), a key and
  -- other bytes.
  local function append_expiring(list, kind, key, bytes)
    list[#list + 1] = kind .. pack('<I2', #key) .. key .. bytes
  end

  -- Writes a new message. If `own` is true, the message keeps its own number. Returns the number of the message as
  -- eight bytes, in little-endian order.
  local function put_message(key, description, rest, own)
    local number8 = sub(description, OWN_IN, OWN_IN + 7)
    local head = sub(description, HEAD_IN, HEAD_IN + 1)
    if numbered then
      local counter = counters[key]
      counter.is_new = true
      local number = own and unpack8('<I8', description, OWN_IN) or counter.next
      if number >= EXACT then
        corrupt_field('c' .. key, log, 'count of a key: it is too large')
      end
      counter.next = math.max(counter.next, number + 1)
      if byte(description, 2) == 1 then
        counter.ends = life_start + ttl
        append_expiring(endings, 'c', key, '')
      end
      number8 = pack('<I8', number)
      local sequence8 = string.reverse(number8)
      put_retained('m' .. key .. sequence8,
        until8 .. sub(description, CONTENT_IN, CONTENT_IN + 7) .. head .. number8 .. rest)
      append_expiring(retained_fields, 'm', key, sequence8)
      if number >= retain_events then
        local old = 'm' .. key .. string.reverse(pack('<I8', number - retain_events))
        removed_fields[#removed_fields + 1] = old
        fresh[old] = false
      end
    end
    local queue = queues[sub(description, PARTITION_IN, PARTITION_IN + 3)]
    if queue then
      if not queue.first_new then
        local digest = redis.sha1hex(queue.history .. nonce)
        queue.first_new = queue.last + 1
        queue.history = pack('<I4I4', tonumber(sub(digest, 1, 8), 16), tonumber(sub(digest, 9, 16), 16))
      end
      queue.last, waits = queue.last + 1, waits + 1
      put(queue.prefix .. text(queue.last), queue.history .. head .. number8 .. rest)
    end
    return number8
  end

  -- Returns the value of a field of a retained message or id; nil if the field has expired or does not exist.
  local function retained_at(field)
    local found = fresh[field]
    if found == nil then
      found = redis.call('HGET', log, field)
    end
    return found and is_unexpired(field, found) and found or nil
  end

  -- Calls `visit` for each reader of the destination that has a record of a key. A reader is a stream whose hash of
  -- data is one of the Redis keys after the first Redis key of the call. The arguments of `visit` are the Redis key of
  -- the reader's data, the record, the sequence after all events that the reader has settled or spilled, and a flag.
  -- The flag is true if an owner has repeated lost commits of the reader within the last `retain` ms. In this case, the
  -- log may have lost numbers that it had given.
  local function each_reader(key, visit)
    for i = 2, #KEYS do
      local found = redis.call('HMGET', KEYS[i], 'r', 'j' .. key)
      local repeated, record = found[1], found[2]
      local is_lossy = repeated and #repeated == 8 and unpack8('<I8', repeated) + retain > expiry_now
      if record and is_sound(record) and not has_expired(record, expiry_now) then
        local spilled = has(byte(record, 2), layout.SPILLED) and spilled_and_first(record) + 1 or 0
        visit(KEYS[i], record, math.max(unpack8('<I8', record, layout.NEXT), spilled), is_lossy)
      end
    end
  end

  -- Returns whether the record of a key shows that the key has ended.
  local function is_completed(record)
    return byte(record, layout.KEY_RECORD + 1) == layout.COMPLETED
  end

  -- Returns a digest in the form in which a key record contains it: four bytes, the two halves of the digest combined
  -- by `xor`. If the result is 0, the key record contains 1 instead.
  local function short_digest(long)
    local bytes = {}
    for i = 1, 4 do
      bytes[i] = char(bit.bxor(byte(long, 9 - i), byte(long, 5 - i)))
    end
    local digest = table.concat(bytes)
    return digest == '\0\0\0\0' and '\1\0\0\0' or digest
  end

  -- Returns the digests under which a record may have a message: digests of type and data, and digests of type, data,
  -- source and id. The digests are the keys of the returned table.
  local function digests_of_message(description)
    local digests = {[sub(description, CONTENT_IN, CONTENT_IN + 7)] = true}
    for at = DIGESTS_IN, #description, 8 do
      digests[sub(description, at, at + 7)] = true
    end
    return digests
  end

  -- Returns the same digests in the form of a key record.
  local function short_digests_of_message(description)
    local short = {}
    for digest in pairs(digests_of_message(description)) do
      short[short_digest(digest)] = true
    end
    return short
  end

  -- Reads the next number of a record. A cursor contains a record (`record`) and an offset (`at`). Each function that
  -- reads or skips a part of the record moves the offset to the end of this part.
  local function next_number(cursor)
    local number, width = varint(cursor.record, cursor.at)
    cursor.at = cursor.at + width
    return number
  end

  local function skip_numbers(cursor, times)
    for _ = 1, times do
      next_number(cursor)
    end
  end

  -- Skips a text. Its length precedes the text.
  local function skip_text(cursor)
    local size = next_number(cursor)
    cursor.at = cursor.at + size
  end

  -- Skips a text that may be missing. The first byte states whether there is a text.
  local function skip_optional_text(cursor)
    cursor.at = cursor.at + 1
    if byte(cursor.record, cursor.at - 1) == 1 then
      skip_text(cursor)
    end
  end

  -- Returns the offset of the first digest in the record of a key, and the number of digests. The last digest belongs
  -- to the last settled sequence. Returns two zeros if the record is damaged.
  local function digests_of(record)
    -- The maximum number of runs of ids in a record. Each run has two numbers.
    local RUNS_LIMIT = 8
    local cursor = {record = record, at = layout.NUMBERS}
    skip_numbers(cursor, 7)
    local runs = next_number(cursor)
    if runs > RUNS_LIMIT then
      return 0, 0
    end
    skip_numbers(cursor, 2 * runs)
    if unpack8('<I8', record, layout.ROLLOUT) > 0 then
      -- The name of the handler version, and the digest of its file.
      skip_text(cursor)
      cursor.at = cursor.at + 32
    end
    cursor.at = cursor.at + 1
    if byte(record, cursor.at - 1) ~= 0 then
      -- The text of the failure, and the handler version that failed, if any.
      skip_text(cursor)
      skip_optional_text(cursor)
    end
    local size = next_number(cursor)
    if cursor.at + 4 * size > state_at(record) then
      return 0, 0
    end
    return cursor.at, size
  end

  -- Returns the sequence after the last early dead letter of a key, but at most 2^63, so that `pack` can encode the
  -- sequence. The record of the key contains the digests, then the gaps, and then the range of these letters. Returns 0
  -- if the record has no such range, or is damaged.
  local function after_letters(record)
    if byte(record, layout.KEY_RECORD) ~= layout.KEY_RECORD_AHEAD_FORMAT then
      return 0
    end
    local from, size = digests_of(record)
    if from == 0 then
      return 0
    end
    local cursor, stop = {record = record, at = from + 4 * size}, state_at(record)
    for _ = 1, next_number(cursor) do
      -- The kind of the gap's end (one byte). Then six numbers: two sequences, three times and the number of rounds.
      cursor.at = cursor.at + 1
      skip_numbers(cursor, 6)
      for _ = 1, next_number(cursor) do
        -- The answers of a replay source: the name of the source, three counts, and the last error.
        skip_text(cursor)
        skip_numbers(cursor, 3)
        skip_optional_text(cursor)
        if cursor.at >= stop then
          return 0
        end
      end
      if cursor.at >= stop then
        return 0
      end
    end
    -- The first sequence of the range, and the number of sequences after it.
    local last = next_number(cursor)
    last = last + next_number(cursor)
    return cursor.at <= stop and math.min(last + 1, 2 ^ 63) or 0
  end

  -- Compares an event with the events that the readers have under a sequence of a key. A reader has a sequence if it
  -- has settled or spilled this sequence or a later one. Returns whether the event with these digests is the event of
  -- the sequence in all readers that have the sequence. The table `digests` contains the digests as `long`, and in the
  -- form of a key record as `short`. Returns false if no reader has the sequence. A reader may have a sequence without
  -- a digest of its event. With `trusts_lossy`, the event of such a sequence counts as the same event if an owner has
  -- repeated lost commits of this reader. The reason: the owner has more digests in memory than the record of the key
  -- contains, and recognises a repeat by them.
  local function readers_have(key, digests, sequence, trusts_lossy)
    local is_found, is_same = false, true
    each_reader(key, function(data, record, unused, is_lossy)
      if unused <= sequence then
        return
      end
      is_found = true
      local next_sequence = unpack8('<I8', record, layout.NEXT)
      local digest, has_event
      if sequence < next_sequence then
        local from, size = digests_of(record)
        local index = size - (next_sequence - sequence)
        digest = index >= 0 and sub(record, from + 4 * index, from + 4 * index + 3)
        -- The digest of a sequence whose event never arrived is 0.
        digest = digest ~= '\0\0\0\0' and digest
        has_event = digest and digests.short[digest]
      else
        -- A spilled event begins with its digest.
        local event = redis.call('HGET', data, 'e' .. key .. pack('>I8', sequence))
        digest = event and sub(event, 1, 8)
        has_event = digest and digests.long[digest]
      end
      is_same = is_same and (has_event or trusts_lossy and is_lossy and not digest)
    end)
    return is_found and is_same
  end

  -- The kind of the result for a message that the readers have settled, and whose key has ended.
  local SETTLED = char(7)

  -- Returns the result for a message whose number the store may have lost. If every reader that has the next number of
  -- the key has the same event under this number, returns nil, and the store gives the message this number. If the key
  -- has ended, the store gives no number, so that the key does not start again. In this case, the message counts as
  -- settled if the readers have it under any sequence. `refusal` is the result for any other message.
  local function lost_result(key, digests, has_ended, refusal)
    local number = counters[key].next
    if not has_ended then
      return not readers_have(key, digests, number, true) and refusal or nil
    end
    local sequences = {number}
    each_reader(key, function(_, record)
      local from, size = digests_of(record)
      for index = 0, is_completed(record) and size - 1 or -1 do
        if digests.short[sub(record, from + 4 * index, from + 4 * index + 3)] then
          sequences[#sequences + 1] = unpack8('<I8', record, layout.NEXT) - size + index
        end
      end
    end)
    for _, sequence in ipairs(sequences) do
      if readers_have(key, digests, sequence) then
        return SETTLED .. pack('<I8', sequence)
      end
    end
    return not readers_have(key, digests, number, true) and refusal or nil
  end

  -- Checks whether a reader of the destination has events of a key with numbers that the store has not given. Returns
  -- nil if no reader has such events. Otherwise returns the refusal: the kind of the result, and the sequence after the
  -- highest of these numbers, as eight bytes. In two cases, the store itself may have given these numbers and then lost
  -- them: the call publishes lost events again, or an owner has repeated lost commits of a reader that has such events.
  -- In these two cases, returns `lost_result`, and ignores early dead letters, because the script cannot compare a
  -- message with such a letter.
  local function numbered_elsewhere(key, description)
    local highest, has_ended = counters[key].next, false
    local reuses, has_lost = ARGV[15] == '1', false
    each_reader(key, function(_, record, sequence, is_lossy)
      local ends = is_completed(record)
      if not reuses and not is_lossy then
        sequence = math.max(sequence, after_letters(record))
      end
      has_ended = ends and sequence >= highest or has_ended and sequence <= highest
      highest = math.max(highest, sequence)
      has_lost = has_lost or is_lossy and sequence > counters[key].next
    end)
    if highest <= counters[key].next then
      return nil
    end
    local refusal = char(has_ended and 5 or 4) .. pack('<I8', highest)
    if reuses and not has_ended then
      refusal = char(6) .. pack('<I8', counters[key].next)
    end
    if reuses or has_lost then
      local digests = {long = digests_of_message(description), short = short_digests_of_message(description)}
      return lost_result(key, digests, has_ended, refusal)
    end
    return refusal
  end

  -- Sets the expiry time of the counter of an ended key to the expiry time of the key record that shows the end.
  -- Usually the last event of the key sets the expiry time of the counter. But the store has lost this event, so the
  -- counter would otherwise stay for ever.
  local function end_counter(key)
    local counter, expires = counters[key], nil
    each_reader(key, function(_, record)
      if is_completed(record) and has(byte(record, 2), layout.EXPIRES) then
        expires = math.max(expires or 0, unpack8('<I8', record, layout.END))
      end
    end)
    if expires and counter.ends == 0 and counter.next > first then
      counter.ends, counter.is_new = math.min(expires, life_start + ttl), true
      append_expiring(endings, 'c', key, '')
    end
  end

  -- Assigns a producer's message. Does not assign the message in two cases: the log already has it, or a reader has
  -- events with numbers that the store has not given (see `numbered_elsewhere`). The log recognises a message with its
  -- own number by this number, and a message without a number by its id. If the destination numbers no messages, every
  -- message is new. Returns the result for the message: its kind, and a number.
  local function put_by_id(key, description, rest)
    if not numbered then
      return char(0) .. put_message(key, description, rest, is_own(description))
    end
    local own8, id = sub(description, OWN_IN, OWN_IN + 7), sub(description, ID_IN, ID_IN + 7)
    local content = sub(description, CONTENT_IN, CONTENT_IN + 7)
    local own = is_own(description)
    local field = own and 'm' .. key .. string.reverse(own8) or 'i' .. key .. id
    local earlier = sub(description, EARLIER_ID_IN, EARLIER_ID_IN + 7)
    local found = retained_at(field) or not own and earlier ~= id and retained_at('i' .. key .. earlier)
    if found then
      local number8 = own and own8 or sub(found, 1, 8)
      return char(digests_of_message(description)[sub(found, 9, 16)] and 1 or 2) .. number8
    end
    local elsewhere = not own and numbered_elsewhere(key, description)
    if elsewhere then
      local kind = byte(elsewhere, 1)
      if kind == 5 or kind == 7 then
        end_counter(key)
      end
      return elsewhere
    end
    local next8 = pack('<I8', counters[key].next)
    if names_lost_number(description) and next8 ~= own8 then
      return char(8) .. next8
    end
    local number8 = put_message(key, description, rest, own)
    if not own then
      put_retained(field, number8 .. content .. until8)
      append_expiring(retained_fields, 'i', key, id)
    end
    return char(0) .. number8
  end

  -- Assigns the messages of a producer. After the first refused message, the result of all later messages of the group
  -- is `BEHIND`.
  local function assign_producer_group(group)
    local stops = false
    for _, chunk in ipairs(group.chunks) do
      for from = chunk.from + 1, chunk.from + 3 * chunk.size, 3 do
        local answer = stops and BEHIND or put_by_id(ARGV[from], ARGV[from + 1], ARGV[from + 2])
        local kind = sub(answer, 1, 1)
        stops = stops or kind ~= NEW and kind ~= KNOWN and kind ~= SETTLED
        answers[#answers + 1] = answer
      end
    end
  end

  -- Removes the first blocks of the group's origin, up to and including block `last`, but stops before a block with an
  -- unpublished chunk. Returns whether it removed all blocks up to `last`.
  local function trim_blocks(group, last)
    local record, are_done = group.record, true
    each_block(group.origin, record.first, last, function(chunks, number)
      for _, chunk in ipairs(chunks) do
        if chunk.commit > group.published_commit then
          are_done = false
          return true
        end
      end
      removed_fields[#removed_fields + 1] = block_field(group.origin, number)
      record.first = number + 1
    end)
    return are_done
  end

  -- Assigns the messages of an owner, and writes the block of new messages and the record of the origin.
  local function assign_owner_group(group)
    local record, origin, new = group.record, group.origin, {}
    -- For each key, the number of its last message that the loop has processed. Each later message of the key must get
    -- a higher number.
    local floors = {}
    for _, chunk in ipairs(group.chunks) do
      local commit, messages = text(chunk.commit) .. ':', {}
      for from = chunk.from + 1, chunk.from + 3 * chunk.size, 3 do
        local key, description = ARGV[from], ARGV[from + 1]
        local id = sub(description, ID_IN, ID_IN + 7)
        local known = group.known_numbers[commit .. id]
        local number8 = known
        if not known then
          -- If the store has lost a message, the caller sends the message with its earlier number. The message keeps
          -- this number on two conditions: the number is above the floor of the key, and the log retains no other
          -- message with this number.
          local own = is_own(description) and unpack8('<I8', description, OWN_IN) > (floors[key] or 0)
            and not retained_at('m' .. key .. string.reverse(sub(description, OWN_IN, OWN_IN + 7)))
          number8 = put_message(key, description, ARGV[from + 2], own)
        end
        floors[key] = unpack8('<I8', number8)
        answers[#answers + 1] = (known and KNOWN or NEW) .. number8
        if not known then
          messages[#messages + 1] = id .. number8
        end
      end
      if #messages > 0 then
        group.first_new = group.first_new or chunk.commit
        new[#new + 1] = pack('<I8I4I4', chunk.commit, chunk.number, #messages) .. table.concat(messages)
      end
      if record.epoch ~= group.epoch then
        record.epoch, record.commit, record.chunk = group.epoch, 0, 0
      end
      if is_after_position(chunk.commit, chunk.number, record.commit, record.chunk) then
        record.commit, record.chunk = chunk.commit, chunk.number
      end
      if is_after_position(chunk.commit, chunk.number, record.highest_commit, record.highest_chunk) then
        record.highest_commit, record.highest_chunk = chunk.commit, chunk.number
      end
    end
    if record.next - record.first >= TRIM_BLOCKS_THRESHOLD and trim_blocks(group, record.first) then
      trim_blocks(group, math.min(record.first + TRIM_BLOCKS_LIMIT, record.next) - 1)
    end
    if record.first == record.next then
      record.mixed = 0
    elseif group.first_new and group.first_new < group.highest_commit then
      record.mixed = 1
    end
    if #new > 0 then
      -- `removed_fields` may also contain this field, because a lost block had the same number. `fresh` prevents the
      -- removal of the new block.
      local field = block_field(origin, record.next)
      put(field, table.concat(new))
      fresh[field] = true
      record.next = record.next + 1
    end
    put('o' .. origin, char(layout.ORIGIN_FORMAT) .. pack('<I8I8I4I8I4I8I8B', record.epoch, record.commit, record.chunk,
      record.highest_commit, record.highest_chunk, record.first, record.next, record.mixed))
  end

  for _, group in ipairs(groups) do
    answers[#answers + 1] = group.refused or 'D'
    if not group.refused then
      local assign_group = group.origin == '' and assign_producer_group or assign_owner_group
      assign_group(group)
    end
  end
end

for key, counter in pairs(counters) do
  if counter.is_new then
    put('c' .. key, char(layout.COUNTER_FORMAT) .. pack('<I8I8', counter.next, counter.ends))
  end
end
for partition8, queue in pairs(queues) do
  if queue.first_new then
    put(queue.field, pack_queue(queue))
    answers[#answers + 1] = partition8 .. pack('<I8I8', queue.first_new, queue.last) .. queue.history
  end
end
local expiring_writers = {}
if call_number then
  -- The time for which the store keeps the record of a writer, in ms. A call sets a new expiry time only if less than
  -- half of this time is left, so that few calls add a block to the list of expiring records.
  local WRITER_LIFE = 3600 * 1000
  if not writer_expires or writer_expires < writer_clock + WRITER_LIFE / 2 then
    writer_expires = writer_clock + WRITER_LIFE
    expiring_writers[1] = 'r' .. pack('<I2', #writer) .. writer
  end
  local field = 'r' .. writer
  put(field, pack_writer(writer_expires))
  fresh[field] = true
end
if waits > 0 then
  put('w', text((tonumber(redis.call('HGET', log, 'w') or '0') or 0) + waits))
end

-- Add the expiring fields of this call to the lists, and collect the expired fields.
do
  -- The fields of expired blocks, except counters and fields that this call has written.
  local due = {}
  -- If `blocks` has fields, adds a block with these fields to a list of expiring fields. Also removes expired blocks
  -- from the list. `time` is the present time of the clock by which the fields expire. `until_when` is the time at
  -- which the fields of the new block expire. A call adds at most one block and removes up to four, so that the
  -- removals keep up with the additions.
  --
  -- The blocks are in the order of their expiry times, except for late blocks. A late block expires long after the new
  -- block, because a call added the late block while the server's clock was wrong, or with a longer retention time.
  -- Until a late block expires, it would delay the removal of all blocks after it. A call that adds a block therefore
  -- moves the late blocks at the beginning of the list to its end. Each moved block counts as one of the four blocks.
  local function age(list, head, blocks, until_when, time)
    local ends = redis.call('HGET', log, head) or '1 0 0'
    -- The number of the first block, the number of the last block, and the expiry time of the first block.
    local from, to, at_first = string.match(ends, '^(%d+) (%d+) (%d+)$')
    from, to, at_first = tonumber(from), tonumber(to), tonumber(at_first)
    if not from or to >= EXACT or from > to + 1 then
      corrupt_field(head, log, 'three numbers')
    end
    -- A block with an expiry time after `late` is late or damaged.
    local late = time + EXPIRY_DELAY_LIMIT_MS
    if #blocks > 0 then
      late = math.min(late, until_when + layout.CLOCK_JUMP_LIMIT)
    end
    local is_due = from <= to and (at_first <= time or at_first > late)
    if #blocks == 0 and not is_due then
      return
    end
    local old = {}
    for i = from, is_due and math.min(from + 3, to) or 0 do
      old[#old + 1] = list .. text(i)
    end
    local values = #old > 0 and redis.call('HMGET', log, unpack(old)) or {}
    local moved = {}
    for i = 1, #values do
      local block = values[i]
      -- Remove a damaged block too. The names of its expiring fields are then lost, so these fields stay in the hash.
      local is_whole = block and #block >= 8 and unpack8('<I8', block, 1) < time + EXPIRY_DELAY_LIMIT_MS
      at_first = is_whole and unpack8('<I8', block, 1) or 0
      local is_late = at_first > late
      if at_first > time and not is_late then
        break
      elseif is_late then
        -- The expiry time of the next block is unknown, so the next call must read this block.
        moved[#moved + 1], at_first = block, 0
      end
      local at = 9
      while is_whole and not is_late and at + 2 < #block do
        local kind, size = sub(block, at, at), unpack8('<I2', block, at + 1)
        local rest = (kind == 'm' or kind == 'i') and 8 or 0
        local field = kind .. sub(block, at + 3, at + 2 + size + rest)
        if kind == 'c' then
          local counter = counters[sub(field, 2)]
          local is_new = counter and counter.is_new
          local found = not is_new and redis.call('HGET', log, field)
          local stored = found and #found == 17 and unpack8('<I8', found, 10)
          local end_time = stored or is_new and counter.ends or 0
          -- If the key has started anew and ended a second time after this block was written, its counter expires
          -- later, and a later block also contains the counter.
          if end_time ~= 0 and end_time <= time then
            removed_fields[#removed_fields + 1] = field
          end
        elseif not fresh[field] then
          due[#due + 1] = field
        end
        at = at + 3 + size + rest
      end
      removed_fields[#removed_fields + 1] = old[i]
      from = from + 1
    end
    if #blocks > 0 then
      moved[#moved + 1] = pack('<I8', until_when) .. table.concat(blocks)
      if from > to then
        at_first = unpack8('<I8', moved[1], 1)
      end
      for _, block in ipairs(moved) do
        to = to + 1
        put(list .. text(to), block)
      end
    end
    put(head, text(from) .. ' ' .. text(to) .. ' ' .. text(at_first))
  end
  age('a', 'A', retained_fields, life_start + retain, expiry_now)
  age('e', 'E', endings, life_start + ttl, expiry_now)
  if call_number then
    age('d', 'D', expiring_writers, writer_expires, writer_clock)
  end
  -- If a later call has rewritten a field of an expired block, the field has a later expiry time, and stays.
  for from = 1, #due, ARGUMENT_LIMIT do
    local values = redis.call('HMGET', log, unpack(due, from, math.min(from + ARGUMENT_LIMIT - 1, #due)))
    for i = 1, #values do
      if values[i] and not is_unexpired(due[from + i - 1], values[i]) then
        removed_fields[#removed_fields + 1] = due[from + i - 1]
      end
    end
  end
end

-- This separate write makes each call that changes other fields a transaction of at least two commands in the server's
-- append-only file. The end of this transaction also ends a transaction that an earlier crash may have left open (see
-- docs/internals/storage.md).
redis.call('HSET', log, 'b', text(now) .. ' ' .. text(writer_clock))
if #main > 0 then
  redis.call('HSET', log, unpack(main))
end
local removable_fields = {}
for _, field in ipairs(removed_fields) do
  -- Do not remove a field that this call has written.
  if not fresh[field] then
    removable_fields[#removable_fields + 1] = field
  end
end
with_all('HDEL', log, removable_fields)
return 'A' .. table.concat(answers)
