-- Reads letters between two places, in order, until they have so many bytes: the time, and for
-- each place and record.
local data, letters = KEYS[1], KEYS[2]
local from, to, limit, bytes = ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local rows, read = {}, 0
while #rows < 2 * limit and read < bytes do
  local some = math.min(limit, 16)
  local places = members_of(letters, from, to, some)
  for _, place in ipairs(places) do
    local record = redis.call('HGET', data, 'l' .. place)
    from = '(' .. place
    -- One that is empty is being removed.
    if record and record ~= '' then
      rows[#rows + 1] = place
      rows[#rows + 1] = record
      read = read + #record
    end
  end
  if #places < some then
    break
  end
end
return {text(time_now()), rows}
