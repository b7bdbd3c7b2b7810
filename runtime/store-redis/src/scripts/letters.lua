-- Reads the dead letters between two places, in order. A place is the sort key of a letter
-- (runtime/store/src/codec/letter_place.rs). Reads pages of at most 16 places, and ends after the page in which it
-- reaches `limit` letters, `bytes` bytes, or `ENTRY_LIMIT` examined places. If the caller names causes, one byte each,
-- reads only letters that have one of these causes and are at most `within` ms old. Returns three values: the time by
-- which the caller decides which letters have expired; the last examined place (false if no more letters follow); and
-- the place and the record of each letter that it has read.
local data, letters = KEYS[1], KEYS[2]
local from, to, limit, bytes = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local causes, within = ARGV[6], tonumber(ARGV[7])
local expiry_now = expiry_times(time_now())

-- Returns whether the caller has requested a letter with this record. A truncated record counts as a letter without a
-- cause.
local function is_wanted(record)
  if record == '' then
    -- An empty record: a commit has removed the letter, but ended before it removed the entry of the index.
    return false
  end
  if causes == '' then
    return true
  end
  local at = layout.LETTER_KEY
  local length, width = varint(record, at)
  local _, next_width = varint(record, at + width + length)
  local at_cause = at + width + length + next_width + 8
  return #record > at_cause and string.find(causes, sub(record, at_cause, at_cause), 1, true)
    and unpack8('<I8', record, layout.LETTER_TIME) + within >= expiry_now
end

local rows, read, examined = {}, 0, 0
while true do
  local page_limit = math.min(limit, 16)
  local places = members_of(letters, from, to, page_limit)
  for _, place in ipairs(places) do
    local record = redis.call('HGET', data, 'l' .. place)
    from = '(' .. place
    if record and is_wanted(record) then
      rows[#rows + 1] = place
      rows[#rows + 1] = record
      read = read + #record
    end
  end
  examined = examined + #places
  if #places < page_limit then
    return {text(expiry_now), false, rows}
  end
  if #rows >= 2 * limit or read >= bytes or examined >= ENTRY_LIMIT then
    return {text(expiry_now), places[#places], rows}
  end
end
