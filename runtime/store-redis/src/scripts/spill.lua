-- Reads the spilled events of a key between two bounds, in order, until it has read `limit` events or `bytes` bytes, or
-- has examined a limited number of index entries. The lower bound is `[` (inclusive) or `(` (exclusive) and a sequence;
-- the upper bound is a sequence (inclusive). Returns the lower bound for the next call (false if no more events
-- follow), and the sequence and the stored value of each event.
local data, spilled, key = KEYS[1], KEYS[2], ARGV[2]
local limit, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local by_key = spilled_by(key)
local is_behind, first, last = sub(ARGV[5], 1, 1) == '(', sub(ARGV[5], 2), ARGV[6]
-- If the lower bound excludes `first`, then `first` is the last sequence of the last index entry that the previous call
-- examined. Continue after that entry.
local from = is_behind and '(' .. by_key .. first or '[' .. by_key .. spill_block(first)
local to = '[' .. by_key .. spill_block(last)
local record = redis.call('HGET', data, 'j' .. key)
local expiry_now = expiry_times(time_now())
-- Return no events if the key has no record, an expired record, or no spilled events. If the record is damaged, read
-- the events anyway.
if not record or (is_sound(record)
  and (has_expired(record, expiry_now) or not has(byte(record, 2), layout.SPILLED))) then
  return {false, {}}
end

if is_sound(record) then
  restore_spilled_index(data, spilled, key, record)
end

local function is_requested(sequence)
  return not is_after(first, sequence) and not is_after(sequence, last)
end

local found, read, examined = {}, 0, 0
while true do
  local members = members_of(spilled, from, to, 16)
  for _, member in ipairs(members) do
    for _, sequence in ipairs(sequences_of(member, by_key)) do
      -- A sequence may have no event, in three cases: the event was never spilled; a commit has already removed the
      -- event; or the script `commit` wrote the index entry, but ended before it made the commit.
      local event = is_requested(sequence) and redis.call('HGET', data, 'e' .. key .. sequence)
      if event then
        if #found > 0 and (#found >= 2 * limit or read + #event > bytes) then
          return {'[' .. sequence, found}
        end
        found[#found + 1] = sequence
        found[#found + 1] = event
        read = read + #event
      end
    end
    from = '(' .. member
  end
  examined = examined + #members
  if #members < 16 then
    return {false, found}
  end
  if examined * SPILL_BLOCK >= ENTRY_LIMIT then
    local sequences = sequences_of(sub(from, 2), by_key)
    return {'(' .. (sequences[#sequences] or sub(from, #by_key + 2)), found}
  end
end
