-- Reads the due index from an entry on. Answers the time, the entries that have passed (with
-- `all`, the others as well), and the first one after them.
local jobs, due = KEYS[1], KEYS[2]
local limit, all, after_at, after_key = tonumber(ARGV[4]), ARGV[5] == '1', ARGV[6], ARGV[7]
need('hash', jobs)
need('zset', due)
local now = time_now()

-- By bytes: `<` would ask the server's locale.
local function is_after(a, b)
  for i = 1, math.min(#a, #b) do
    if byte(a, i) ~= byte(b, i) then
      return byte(a, i) > byte(b, i)
    end
  end
  return #a > #b
end

local function first_rank()
  if after_at == '' then
    return 0
  end
  local there = redis.call('ZSCORE', due, after_key)
  if there and tonumber(there) == tonumber(after_at) then
    return redis.call('ZRANK', due, after_key) + 1
  end
  local rank = redis.call('ZCOUNT', due, '-inf', '(' .. after_at)
  while true do
    local entry = redis.call('ZRANGE', due, rank, rank, 'WITHSCORES')
    if not entry[1] or tonumber(entry[2]) > tonumber(after_at) or is_after(entry[1], after_key) then
      return rank
    end
    rank = rank + 1
  end
end

-- Whether an entry is about a job that is there.
local function is_due(key, at)
  local record = redis.call('HGET', jobs, key)
  return record and is_sound(record) and has(byte(record, 2), DUE)
    and unpack8('<I8', record, 3) == at and not has_expired(record, now)
end

local entries, rank = {}, first_rank()
while true do
  local part = redis.call('ZRANGE', due, rank, rank + 63, 'WITHSCORES')
  for i = 1, #part, 2 do
    local at = tonumber(part[i + 1])
    if is_due(part[i], at) then
      if (at > now and not all) or #entries >= 2 * limit then
        return {string.format('%.0f', now), entries, {string.format('%.0f', at), part[i]}}
      end
      entries[#entries + 1] = string.format('%.0f', at)
      entries[#entries + 1] = part[i]
    end
  end
  if #part < 128 then
    return {string.format('%.0f', now), entries, false}
  end
  rank = rank + 64
end
