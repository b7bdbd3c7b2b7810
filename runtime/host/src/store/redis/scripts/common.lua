-- What all scripts share. The first three arguments of each: the beginning of the names of the
-- shard's keys, the stream, and milliseconds to add to the server's time (0 outside of tests).
--
-- A job's record: format (1 byte), flags (1), due time (8), end time (8), time of its entry in the
-- expiry index (8), and from JOB on what `codec/job.rs` writes. Sequences are bytes, never numbers:
-- Lua's numbers are exact up to 2^53 only. Nothing is compared with `<` as text either, because
-- Lua does that by the server's locale.
local base, stream, shift = ARGV[1], ARGV[2], tonumber(ARGV[3])
local byte, sub, char = string.byte, string.sub, string.char
local pack, unpack8 = struct.pack, struct.unpack

local RECORD_FORMAT, JOB_FORMAT, SHORTEST = 1, 2, 60
local JOB, PARTITION, TAKEOVERS, NEXT, INCARNATION, SINCE = 27, 29, 33, 37, 45, 53
local DUE, EXPIRES, SPILLED, IDS = 1, 2, 4, 8
-- Arguments of one call, well below what Lua's stack holds.
local CHUNK = 1000

local function has(flags, flag)
  return flags % (flag * 2) >= flag
end

local function of_partition(kind, partition)
  return base .. kind .. ':' .. string.format('%.0f', partition) .. ':' .. stream
end

local function of_key(kind, key)
  return base .. kind .. ':' .. #stream .. ':' .. stream .. ':' .. key
end

local function time_now()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000) + shift
end

local function is_sound(record)
  return #record >= SHORTEST and byte(record, 1) == RECORD_FORMAT and byte(record, JOB) == JOB_FORMAT
end

local function has_expired(record, now)
  return has(byte(record, 2), EXPIRES) and unpack8('<I8', record, 11) <= now
end

-- What stands in the way of using a key as `kind`; nil if nothing does.
local function obstacle(kind, key)
  local found = redis.call('TYPE', key)['ok']
  if found ~= kind and found ~= 'none' then
    return key .. ' is a ' .. found .. ', and a ' .. kind .. ' is right'
  end
end

-- Ends the script with an error before its first write if a key is of another kind.
local function need(kind, key)
  local words = obstacle(kind, key)
  if words then
    error({err = 'WRONGTYPE ' .. words .. '. Somebody else has written it: remove or rename it'})
  end
end
