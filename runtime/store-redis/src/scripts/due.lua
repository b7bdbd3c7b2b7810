-- Reads the due index of a partition in this shard, starting after the entry that the caller names. Corrects or removes
-- entries that differ from their key record, because the key record is authoritative. Returns the server's time, the
-- due entries (if `all` is true, also entries that are not due yet), and the first entry after the returned entries.
local data, due, partition4 = KEYS[1], KEYS[2], ARGV[2]
local limit, all, after_at, after_key = tonumber(ARGV[3]), ARGV[4] == '1', ARGV[5], ARGV[6]
local now = time_now()
local expiry_now = expiry_times(now)

-- Returns the rank of the first entry after the entry that the caller names; 0 if the caller names no entry.
local function first_rank()
  if after_at == '' then
    return 0
  end
  local there = redis.call('ZSCORE', due, after_key)
  if there and tonumber(there) == tonumber(after_at) then
    return redis.call('ZRANK', due, after_key) + 1
  end
  -- The named entry no longer exists, or has another time now. Find the rank of the first entry after its old place by
  -- binary search: entries with the same time are in the order of their keys.
  local rank = redis.call('ZCOUNT', due, '-inf', '(' .. after_at)
  local behind = redis.call('ZCOUNT', due, '-inf', after_at)
  while rank < behind do
    local middle = math.floor((rank + behind) / 2)
    local entry = redis.call('ZRANGE', due, middle, middle)
    if not entry[1] or is_after(entry[1], after_key) then
      behind = middle
    else
      rank = middle + 1
    end
  end
  return rank
end

local stale_keys, moved_entries = {}, {}
-- Returns whether the read may return an entry of the index. Collects the entries to remove and the entries to correct.
local function is_due(key, at, record)
  if record and (not is_sound(record) or unpack8('<I8', record, layout.DUE_AT) > EXACT) then
    -- Keep the entry, because an operator may repair the damaged record.
    return false
  end
  if not record or not has(byte(record, 2), layout.DUE)
    or sub(record, layout.PARTITION, layout.PARTITION + 3) ~= partition4 then
    stale_keys[#stale_keys + 1] = key
    return false
  end
  local due_at = unpack8('<I8', record, layout.DUE_AT)
  if due_at ~= at then
    -- The script corrects the time of the entry when the read has ended. This read still returns the entry under its
    -- old time. This is safe, because an owner may handle a key before its time.
    moved_entries[#moved_entries + 1] = text(due_at)
    moved_entries[#moved_entries + 1] = key
  end
  return not has_expired(record, expiry_now)
end

-- Returns the due entries, and the first entry after them (false if no entry follows). If the call has examined
-- `ENTRY_LIMIT` entries, the second result is the last examined entry instead.
local function read()
  local entries, rank, examined = {}, first_rank(), 0
  while true do
    local page = redis.call('ZRANGE', due, rank, rank + 63, 'WITHSCORES')
    local fields = {}
    for i = 1, #page, 2 do
      fields[#fields + 1] = 'j' .. page[i]
    end
    local records = #fields > 0 and redis.call('HMGET', data, unpack(fields)) or {}
    for i = 1, #page, 2 do
      local at = math.max(0, math.min(tonumber(page[i + 1]), EXACT))
      if is_due(page[i], at, records[(i + 1) / 2]) then
        if (at > now and not all) or #entries >= 2 * limit then
          return entries, {text(at), page[i]}
        end
        entries[#entries + 1] = text(at)
        entries[#entries + 1] = page[i]
      end
    end
    if #page < 128 then
      return entries, false
    end
    rank, examined = rank + 64, examined + 64
    if examined >= ENTRY_LIMIT then
      -- End the call, because one call examines a limited number of entries. Return the last examined entry, so that
      -- the next call can continue after it.
      return entries, {text(math.max(0, math.min(tonumber(page[128]), EXACT))), page[127]}
    end
  end
end

local entries, next_entry = read()
with_all('ZREM', due, stale_keys)
with_all('ZADD', due, moved_entries)
for i = 1, #moved_entries, 2 do
  -- An entry with a corrected time may now be the next entry.
  if not next_entry or tonumber(moved_entries[i]) < tonumber(next_entry[1]) then
    next_entry = {moved_entries[i], moved_entries[i + 1]}
  end
end
return {text(now), entries, next_entry}
