-- Reads spilled events of a key between two bounds, in order, until they have so many bytes, or so
-- many entries were looked at that it is enough for one call. Answers the bound to go on from if
-- there are more, and sequence and event of each.
local data, spilled, key = KEYS[1], KEYS[2], ARGV[2]
local limit, bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local by_key = spilled_by(key)
local from, to = sub(ARGV[5], 1, 1) .. by_key .. sub(ARGV[5], 2), '[' .. by_key .. ARGV[6]
local record = redis.call('HGET', data, 'j' .. key)
-- Where the record cannot be read, its events can still.
if not record or (is_sound(record)
  and (has_expired(record, time_now()) or not has(byte(record, 2), SPILLED))) then
  return {false, {}}
end
local found, read, looked = {}, 0, 0
while true do
  local members = members_of(spilled, from, to, 16)
  for _, member in ipairs(members) do
    local sequence = sub(member, #by_key + 1)
    -- An entry without an event is of a commit that was never made, one of another length not of
    -- this store.
    local event = #sequence == 8 and redis.call('HGET', data, 'e' .. key .. sequence)
    if event then
      if #found > 0 and (#found >= 2 * limit or read + #event > bytes) then
        return {'(' .. sub(from, #by_key + 2), found}
      end
      found[#found + 1] = sequence
      found[#found + 1] = event
      read = read + #event
    end
    from = '(' .. member
  end
  looked = looked + #members
  if #members < 16 then
    return {false, found}
  end
  if looked >= MANY then
    return {'(' .. sub(from, #by_key + 2), found}
  end
end
