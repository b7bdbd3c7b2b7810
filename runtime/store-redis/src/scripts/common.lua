-- What all scripts share, behind the layout of records, which the host puts in front of it. The
-- first argument of each is a number of ms to add to the server's time (0 outside of tests).
--
-- Sequences are bytes, never numbers: Lua's numbers are exact up to 2^53 only. Nothing is compared
-- with `<` as text either, because Lua does that by the server's locale. Where numbers are used all
-- the same, they count commits, or events of a `fifo` stream, and start at 1.
local byte, sub, char = string.byte, string.sub, string.char
local pack, unpack8 = struct.pack, struct.unpack

-- Arguments of one call, well below what Lua's stack holds; an even number, so that pairs stay
-- together.
local CHUNK = 1000
-- What one call looks at at most: some tens of ms.
local MANY = 20 * CHUNK
-- Up to here Lua counts without holes.
local EXACT = 2 ^ 52
-- The longest outbox, in commits: a thousand a second for fifty days. To look for more takes hours.
local LONGEST = 2 ^ 32

-- A number that there is not.
local NO_NUMBER = string.rep('\0', 8)

local function has(flags, flag)
  return flags % (flag * 2) >= flag
end

local function text(number)
  return string.format('%.0f', number)
end

local function time_now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + tonumber(ARGV[1])
end

-- Runs a command on as many members, fields or pairs as there are.
local function with_all(command, key, list)
  for from = 1, #list, CHUNK do
    redis.call(command, key, unpack(list, from, math.min(from + CHUNK - 1, #list)))
  end
end

local function is_sound(record)
  return #record >= SHORTEST and byte(record, 1) == RECORD_FORMAT and byte(record, JOB) == JOB_FORMAT
end

local function has_expired(record, now)
  return has(byte(record, 2), EXPIRES) and unpack8('<I8', record, END) <= now
end

-- Where the state of a record begins.
local function state_at(record)
  return JOB + unpack8('<I4', record, LENGTH)
end

-- An answer that says nothing: its time, and how many writes were refused and letters known.
local NO_ANSWER = string.rep('\0', 8 + 4 + 4)

local function is_fence(fence)
  return #fence >= FENCE_ANSWER + 7 and byte(fence, 1) == FENCE_FORMAT
end

local function claim_of(fence)
  return sub(fence, 2, FENCE_NUMBER - 1)
end

local function corrupt_field(field, key, words)
  error({err = 'CORRUPT field ' .. field .. ' of ' .. key .. ' is no ' .. words})
end

-- A lease: epoch, holder and time.
local LEASE, NOBODY = '^(%d+) ([%x-]+) (%d+)$', '-'

-- The generation of the table that stands there; that of no table where it is something else, so that
-- the next change mends it.
local function generation_of(found)
  return found and #found < 20 and string.find(found, '^%d+$') and found or '0'
end

-- Fails here, before anything is written, where that is of another type.
local function must_be_hash(key)
  redis.call('HEXISTS', key, 'generation')
end

-- The epoch and the holder of the last lease of a partition; 0 and nobody where there was none.
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

-- The fence of a partition, the number of its last commit, and that of the first one that may have
-- something to publish; nothing where nobody has claimed it.
local function read_fence(data, partition)
  local found = redis.call('HMGET', data, 'f' .. partition, 'q' .. partition)
  local fence, first = found[1], found[2] or '1'
  if not fence then
    return nil
  end
  local last = is_fence(fence) and unpack8('<I8', fence, FENCE_NUMBER)
  -- The time of the last commit as well, since the next one is later.
  if not last or last >= EXACT or unpack8('<I8', fence, FENCE_ANSWER) >= EXACT then
    corrupt_field('f' .. partition, data, 'fence that this version reads')
  end
  local number = string.find(first, '^%d+$') and tonumber(first)
  if not number or number < 1 or number > last + 1 then
    corrupt_field('q' .. partition, data, 'number of a commit up to the last one. Remove it: what is'
      .. ' still there of the outbox is then published, be it once more')
  end
  if last - number > LONGEST then
    corrupt_field('f' .. partition, data, 'fence that can be: it says that the last commit was number '
      .. text(last) .. ', and something of number ' .. text(number) .. ' is not published')
  end
  return fence, last, number
end

-- From which number to which something waits for a partition; and the field that says so.
local function read_queue(log, partition)
  local field = 'q' .. partition
  local found, first, last = redis.call('HGET', log, field), 1, 0
  if found then
    first = #found == 16 and unpack8('<I8', found, 1)
    last = first and unpack8('<I8', found, 9)
    if not first or first < 1 or last >= EXACT or first > last + 1 or last - first > LONGEST then
      corrupt_field(field, log, 'pair of numbers, from the first event that waits to the last one')
    end
  end
  return first, last, field
end

-- By bytes: `<` would ask the server's locale.
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    if byte(a, i) ~= byte(b, i) then
      return byte(a, i) > byte(b, i)
    end
  end
  return #a > #b
end

-- Members of an index between two bounds, which come in order unless somebody else has put some in.
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

-- With what the entries of a key begin in the index of spilled events: no other key's do. An entry is of
-- a block of sequences, of which the first stands in it: mostly a key spills events that follow each
-- other, and an index of each of them would cost as much as the events.
local function spilled_by(key)
  return pack('>I2', #key) .. key
end

local SPILL_BLOCK = 16

local function spill_block(sequence)
  local last = byte(sequence, 8)
  return sub(sequence, 1, 7) .. char(last - last % SPILL_BLOCK)
end

-- The sequences that an entry of this key is of; none where it is not of this store, and would name
-- another key's event.
local function sequences_of(member, by_key)
  local sequences, begin = {}, byte(member, #by_key + 8)
  if #member == #by_key + 8 and begin % SPILL_BLOCK == 0 then
    for last = begin, begin + SPILL_BLOCK - 1 do
      sequences[#sequences + 1] = sub(member, #by_key + 1, -2) .. char(last)
    end
  end
  return sequences
end

-- A number of no fixed width, and its width.
local function varint(bytes, from)
  local number, scale, at, digit = 0, 1, from, nil
  repeat
    digit = byte(bytes, at) or 0
    number, scale, at = number + digit % 128 * scale, scale * 128, at + 1
  until digit < 128 or at == from + 10
  return number, at - from
end

-- The sequence behind which a record says that nothing is spilled, and its first id.
local function spilled_and_first(record)
  local at, numbers = NUMBERS, {}
  for i = 1, 7 do
    local number, width = varint(record, at)
    numbers[i], at = number, at + width
  end
  return numbers[6], numbers[7]
end

-- The ids that a record says its key has taken: the first sequence, and the one behind the last.
local function ids_range(record)
  local last_spilled, first = spilled_and_first(record)
  local behind = math.max(unpack8('<I8', record, NEXT), last_spilled + 1)
  -- A record that is damaged must not keep the server busy.
  if not (first <= EXACT) then
    return 0, 0
  end
  return first, math.max(first, math.min(behind, first + IDS_LIMIT))
end

local function id_block(key, block)
  return key .. pack('>I8', block)
end
