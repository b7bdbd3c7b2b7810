-- Ordain puts the text of this file at the beginning of every script. The first argument of each script (`ARGV[1]`) has
-- two numbers. The first number is a number of ms that `time_now` adds to the server's time: 0 except in tests. The
-- second number is the time of the caller's clock (runtime/store-redis/src/clock.rs), for `expiry_times`.
--
-- The word `layout`, followed by a dot and a name, stands for a constant of Ordain (layout of records, flags, limits).
-- Before Ordain sends a script, it replaces each of these expressions by the constant's number, so that a constant
-- needs no local and no lookup.
--
-- Lua's numbers are exact up to 2^53, but a sequence can be larger. Scripts therefore store, compare and return a
-- sequence in the form of eight bytes, if its exact value matters. No script compares texts with `<`, because Lua
-- compares texts by the server's locale. Commit numbers, and sequences in a `fifo` stream, start at 1 and never reach
-- 2^53, so Lua's numbers are exact for them.
--
-- Every script has the locals of this file, even the locals that it does not use. `cargo xtask lua` checks that each
-- script stays below Lua's limits of 200 locals and 60 upvalues.
local byte, sub, char = string.byte, string.sub, string.char
local pack, unpack8 = struct.pack, struct.unpack

-- A script passes at most this number of arguments from a list to one command. The number is well below the capacity of
-- Lua's stack, and only the HSETs that write a whole commit or a whole assignment have more arguments. The number is
-- even, so that a field and its value are always in the same command.
local ARGUMENT_LIMIT = 1000
-- The approximate number of fields or entries after which a script ends its work, if a later call can continue the
-- work. Reading or removing this number of entries takes some tens of ms, and blocks the server for this time.
local ENTRY_LIMIT = 20 * ARGUMENT_LIMIT
-- The numbers with which scripts calculate are below this number: half of 2^53, so that the sum of two of them is exact
-- too.
local EXACT = 2 ^ 52
-- The maximum length of an outbox that scripts accept, in commits: a thousand commits per second for fifty days. A
-- longer outbox is damaged data, and a search through it would take hours. The length of a queue, in entries, and the
-- number of blocks of an origin (`assign.lua`) have the same limit.
local LENGTH_LIMIT = 2 ^ 32

-- Eight zero bytes. They stand for a missing number, or for an unknown history digest (see `read_queue`).
local NO_NUMBER = string.rep('\0', 8)

local function has(flags, flag)
  return flags % (flag * 2) >= flag
end

local function text(number)
  return string.format('%.0f', number)
end

-- Returns the server's time in ms, plus the number of ms in the first argument of the script.
local function time_now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(string.match(ARGV[1], '^%d+'))
end

-- Returns two times for data that expires. `now` is the result of `time_now`. Data has expired if its expiry time is at
-- or before the first of the two times. A script adds the lifetime of new data to the second time.
--
-- The server's clock may be wrong. If it is ahead of the caller's clock by more than `CLOCK_JUMP_LIMIT`, data expires
-- by the caller's clock, which follows the server's clock only after a confirmation. If the server's clock is behind,
-- data also expires by the caller's clock, which never goes back. New data lives from the later of the two times, so a
-- wrong clock never shortens its life.
local function expiry_times(now)
  local caller = tonumber(string.match(ARGV[1], '%d+$'))
  local later = math.max(now, caller)
  return later - caller > layout.CLOCK_JUMP_LIMIT and caller or later, later
end

-- Runs a command on a Redis key with the arguments in `list` (members, fields or pairs). If the list has more than
-- `ARGUMENT_LIMIT` arguments, runs the command several times, each time with a part of the list.
local function with_all(command, key, list)
  for from = 1, #list, ARGUMENT_LIMIT do
    redis.call(command, key, unpack(list, from, math.min(from + ARGUMENT_LIMIT - 1, #list)))
  end
end

-- Returns whether the stored record of a key has at least the minimum length, and has the formats that this version
-- reads.
local function is_sound(record)
  local format = byte(record, layout.KEY_RECORD)
  return #record >= layout.SHORTEST and byte(record, 1) == layout.RECORD_FORMAT
    and (format == layout.KEY_RECORD_FORMAT or format == layout.KEY_RECORD_AHEAD_FORMAT)
end

local function has_expired(record, now)
  return has(byte(record, 2), layout.EXPIRES) and unpack8('<I8', record, layout.END) <= now
end

-- Returns the offset in the stored record of a key at which the state begins, if the state is not in a separate field.
local function state_at(record)
  return layout.KEY_RECORD + unpack8('<I4', record, layout.LENGTH)
end

-- The reply in the fence of a shard without a commit: the time, the number of refused writes and the number of known
-- letters are 0.
local NO_ANSWER = string.rep('\0', 8 + 4 + 4)

-- Returns whether a value is long enough for a fence, and has the format that this version reads.
local function is_fence(fence)
  return #fence >= layout.FENCE_ANSWER + 7 and byte(fence, 1) == layout.FENCE_FORMAT
end

local function claim_of(fence)
  return sub(fence, 2, layout.FENCE_NUMBER - 1)
end

local function corrupt_field(field, key, words)
  error({err = 'CORRUPT field ' .. field .. ' of ' .. key .. ' is no ' .. words})
end

-- `LEASE` is the pattern of a stored lease: the epoch, the holder, and the time when the lease was granted or released.
-- `NOBODY` stands for the holder in a released lease.
local LEASE, NOBODY = '^(%d+) ([%x-]+) (%d+)$', '-'

-- Returns the version of the membership table. `found` is the value of the field `generation`: a number that a script
-- replaces when members, leases or rollouts change. Returns 0 if the field is missing or contains no valid number. No
-- table has version 0, so the next heartbeat then writes a new version.
local function membership_version_of(found)
  return found and #found < 20 and string.find(found, '^%d+$') and found or '0'
end

-- Fails if the Redis key exists and is not a hash. A script calls this function before its first write, so that a key
-- of the wrong type never stops the script after some of its writes.
local function must_be_hash(key)
  redis.call('HEXISTS', key, 'generation')
end

-- Returns the epoch and the holder of the last lease of a partition; 0 and `NOBODY` if the partition was never leased.
local function read_lease(leases, field)
  local row = redis.call('HGET', leases, field)
  if not row then
    return 0, NOBODY
  end
  local epoch, holder = string.match(row, LEASE)
  if not epoch or tonumber(epoch) >= EXACT then
    corrupt_field(field, leases, 'lease: remove it')
  end
  return tonumber(epoch), holder
end

-- Returns the fence of a partition in this shard, the number of the last commit, and the number of the first commit
-- that may have an entry in the outbox. Returns nil if the partition has no fence in this shard, because no owner has
-- claimed it or because the shard has lost the fence.
local function read_fence(data, partition)
  local found = redis.call('HMGET', data, 'f' .. partition, 'q' .. partition)
  local fence, first = found[1], found[2] or '1'
  if not fence then
    return nil
  end
  local last = is_fence(fence) and unpack8('<I8', fence, layout.FENCE_NUMBER)
  -- The time of the last commit has the same limit as the number of the commit, because `commit.lua` and this function
  -- add 1 to these values.
  if not last or last >= EXACT or unpack8('<I8', fence, layout.FENCE_ANSWER) >= EXACT then
    corrupt_field('f' .. partition, data, 'fence that this version reads')
  end
  local number = string.find(first, '^%d+$') and tonumber(first)
  if not number or number < 1 or number > last + 1 then
    corrupt_field('q' .. partition, data, 'number of a commit up to the last one. Remove the field: Ordain then'
      .. ' publishes all messages that are left in the outbox, some perhaps a second time')
  end
  if last - number > LENGTH_LIMIT then
    corrupt_field('f' .. partition, data, 'possible fence: its last commit is number ' .. text(last)
      .. ', but the outbox begins at commit ' .. text(number))
  end
  return fence, last, number
end

-- Returns the queue of a partition as a table. `first` is the number of the first waiting entry, and `last` is the
-- number of the newest entry; if the queue is empty, `first` is `last` + 1. The history digest of an entry is a digest,
-- of eight bytes, of all writes to the queue up to the entry. `history` is the history digest of the newest entry, and
-- `before` is the history digest of the entry before the first waiting entry. `field` is the field of the hash with
-- these four values, and `prefix` is the prefix of the fields of the entries.
local function read_queue(log, partition)
  local queue = {first = 1, last = 0, history = NO_NUMBER, before = NO_NUMBER, field = 'q' .. partition,
    prefix = 'n' .. partition .. ':'}
  local found = redis.call('HGET', log, queue.field)
  if found then
    local first = #found == 32 and unpack8('<I8', found, 1)
    local last = first and unpack8('<I8', found, 9)
    if not first or first < 1 or last >= EXACT or first > last + 1 or last - first > LENGTH_LIMIT then
      corrupt_field(queue.field, log, 'queue: two numbers (of the first and the last event) and two history digests')
    end
    queue.first, queue.last = first, last
    queue.history, queue.before = sub(found, 17, 24), sub(found, 25, 32)
  end
  return queue
end

local function pack_queue(queue)
  return pack('<I8I8', queue.first, queue.last) .. queue.history .. queue.before
end

-- Returns the history digest of the entry `number` of a queue; `NO_NUMBER` if the entry is damaged, so that the digest
-- is unknown. `value` is the stored value of the entry, which this function does not need for the newest entry.
local function history_at(queue, number, value)
  if number == queue.last then
    return queue.history
  end
  return value and #value >= 8 and sub(value, 1, 8) or NO_NUMBER
end

-- Returns whether the queue has, or had, an entry with this number and this history digest. If so, all earlier entries
-- of the queue are also the same as when the caller got these two values. An unknown history digest, such as that of a
-- damaged entry, counts as equal to every history digest.
local function has_position(log, queue, number, history)
  local found
  if number > queue.last then
    return false
  elseif number >= queue.first then
    found = history_at(queue, number, redis.call('HGET', log, queue.prefix .. text(number)))
  elseif number > 0 and number == queue.first - 1 then
    found = queue.before
  else
    -- The queue does not keep the history digests of the entries before the last removed entry, so this function cannot
    -- check these entries, and returns true for all of them.
    return true
  end
  return found == history or found == NO_NUMBER or history == NO_NUMBER
end

-- Returns the record of a writer of queue entries. The first result is its expiry time (nil if the shard has no
-- record). The second result contains the numbers of the writer's calls that the shard has processed, as ascending
-- ranges.
local function read_writer(log, writer)
  local field, ranges = 'r' .. writer, {}
  local found = redis.call('HGET', log, field)
  if not found then
    return nil, ranges
  end
  local expires = #found >= 24 and #found % 16 == 8 and unpack8('<I8', found, 1)
  if not expires or expires >= EXACT then
    corrupt_field(field, log, 'record of a writer')
  end
  for at = 9, #found, 16 do
    local first, last = unpack8('<I8I8', found, at)
    if first < 1 or first > last or last >= EXACT then
      corrupt_field(field, log, 'record of a writer')
    end
    ranges[#ranges + 1] = {first = first, last = last}
  end
  return expires, ranges
end

-- Returns whether the log of a destination in this shard has the witness of a producer: the newest message or the
-- newest call that the shard has confirmed to the producer. Returns true if the producer names no witness. A shard that
-- lacks the witness has gone back in time.
local function has_witness(log, kind, of, id_or_number, expected)
  if kind == 'i' then
    local found = redis.call('HGET', log, 'i' .. of .. id_or_number)
    return found and sub(found, 1, 8) == expected
  elseif kind == 'm' then
    local found = redis.call('HGET', log, 'm' .. of .. id_or_number)
    if found then
      return sub(found, 9, 16) == sub(expected, 1, 8)
    end
    -- The log retains a limited number of messages of a key, so a message of another producer may have removed the
    -- witness. In this case, the next number of the key is above the number of the message that removed the witness.
    local counter = redis.call('HGET', log, 'c' .. of)
    return counter and #counter == 17 and unpack8('<I8', counter, 2) > unpack8('<I8', expected, 9)
  elseif kind == 'r' then
    local _, ranges = read_writer(log, of)
    local number = tonumber(id_or_number)
    for _, range in ipairs(ranges) do
      if range.first <= number and number <= range.last then
        return true
      end
    end
    return false
  end
  return true
end

-- Returns whether `a` is after `b` in byte order. The operator `<` would use the server's locale instead.
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    if byte(a, i) ~= byte(b, i) then
      return byte(a, i) > byte(b, i)
    end
  end
  return #a > #b
end

-- Returns the members of an index (a sorted set in which all members have the score 0) between two bounds, in byte
-- order, and at most `limit` members. Fails if the members are not in order, because another program has added members
-- with other scores.
local function members_of(index, from, to, limit)
  local members = redis.call('ZRANGEBYLEX', index, from, to, 'LIMIT', 0, limit)
  local before = sub(from, 1, 1) == '(' and sub(from, 2)
  for _, member in ipairs(members) do
    if before and not is_after(member, before) then
      error({err = 'CORRUPT ' .. index .. ' is not in order: all its members must have the score 0'})
    end
    before = member
  end
  return members
end

-- Returns the prefix of a key's entries in the index of spilled events. Entries of other keys do not have this prefix.
-- An entry stands for a block of consecutive sequences, and contains the first sequence of the block. Blocks save
-- memory: a key usually spills consecutive events, and one entry for each event would need about as much memory as a
-- small event.
local function spilled_by(key)
  return pack('>I2', #key) .. key
end

local SPILL_BLOCK = 16

local function spill_block(sequence)
  local last = byte(sequence, 8)
  return sub(sequence, 1, 7) .. char(last - last % SPILL_BLOCK)
end

-- Returns the sequences of the block for which `member`, an entry in the index of spilled events, stands. `by_key` is
-- the prefix of the key's entries. Returns no sequences if the entry is invalid: another program has written such an
-- entry, and its bytes could lead to the field of another key's event.
local function sequences_of(member, by_key)
  local sequences, begin = {}, byte(member, #by_key + 8)
  if #member == #by_key + 8 and begin % SPILL_BLOCK == 0 then
    for last = begin, begin + SPILL_BLOCK - 1 do
      sequences[#sequences + 1] = sub(member, #by_key + 1, -2) .. char(last)
    end
  end
  return sequences
end

-- Decodes a number with variable width. Returns the number, and its width in bytes.
local function varint(bytes, from)
  local number, scale, at = 0, 1, from
  repeat
    local digit = byte(bytes, at) or 0
    number, scale, at = number + digit % 128 * scale, scale * 128, at + 1
  until digit < 128 or at == from + 10
  return number, at - from
end

-- Returns three sequences from a key record: the sequence of the last spilled event, the first sequence whose id the
-- store keeps, and the sequence of the first spilled event.
local function spilled_and_first(record)
  local at, numbers = layout.NUMBERS, {}
  for i = 1, 7 do
    local number, width = varint(record, at)
    numbers[i], at = number, at + width
  end
  return numbers[6], numbers[7], numbers[5]
end

-- Restores the entries of a key in the index of spilled events, if the index has no entry of the key. The index lacks
-- the entries if another program has removed it. The key must have spilled events. One call restores at most about
-- `ENTRY_LIMIT` entries.
local function restore_spilled_index(data, spilled, key, record)
  local by_key = spilled_by(key)
  if #members_of(spilled, '[' .. by_key, '[' .. by_key .. string.rep(char(255), 9), 1) > 0 then
    return
  end
  local last_spilled, _, first_spilled = spilled_and_first(record)
  local missing = {}
  local stop = math.min(last_spilled, first_spilled + SPILL_BLOCK * ENTRY_LIMIT, EXACT)
  for begin = first_spilled - first_spilled % SPILL_BLOCK, stop, SPILL_BLOCK do
    local fields = {}
    for sequence = begin, begin + SPILL_BLOCK - 1 do
      fields[#fields + 1] = 'e' .. key .. pack('>I8', sequence)
    end
    for _, event in ipairs(redis.call('HMGET', data, unpack(fields))) do
      if event then
        missing[#missing + 1] = '0'
        missing[#missing + 1] = by_key .. pack('>I8', begin)
        break
      end
    end
  end
  with_all('ZADD', spilled, missing)
end

-- Returns the range of sequences for which the store keeps the ids of accepted events: the first sequence, and the
-- sequence after the last one.
local function ids_range(record)
  local last_spilled, first = spilled_and_first(record)
  local behind = math.max(unpack8('<I8', record, layout.NEXT), last_spilled + 1)
  -- Only a damaged record has a first sequence above `EXACT`. A loop over its range would block the server, so return
  -- an empty range.
  if first > EXACT then
    return 0, 0
  end
  return first, math.max(first, math.min(behind, first + layout.IDS_LIMIT))
end

local function id_block(key, block)
  return key .. pack('>I8', block)
end

-- Returns an error reply that names the commands that the Redis user of the connection may not run. `checks` lists the
-- needed commands, each with arguments. Returns nil if the user may run all of them.
local function rights_error(checks)
  local missing, is_renamed = {}, false
  for _, command in ipairs(checks) do
    -- The call fails if the server does not know the command, because its configuration renames the command.
    local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(command))
    is_renamed = is_renamed or not is_known
    if not (is_known and is_allowed) then
      missing[#missing + 1] = string.lower(command[1])
    end
  end
  if #missing == 0 then
    return nil
  end
  table.sort(missing)
  return redis.error_reply('NOPERM the user must be allowed to run these commands on ' .. KEYS[1]
    .. ' and on all keys with the same prefix: ' .. table.concat(missing, ', ')
    .. (is_renamed and '. The server renames at least one of them: remove rename-command from its configuration' or ''))
end
