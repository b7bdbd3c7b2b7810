-- Reads the unpublished outbox entries of the commits after commit `after`, in order, until it has read `limit` entries
-- or `bytes` bytes, or has examined about `ENTRY_LIMIT` commits. Returns the number of the last examined commit, or
-- false if the script has examined all commits without reaching a limit. Also returns each entry with the number of its
-- commit.
local data, partition, after = KEYS[1], ARGV[2], tonumber(ARGV[3])
local limit, bytes = tonumber(ARGV[4]), tonumber(ARGV[5])
local fence, last, first = read_fence(data, partition)
if not fence then
  return {false, {}}
end
local at = math.max(first, after + 1)
-- Read only a few entries at a time, because an entry may be large.
local entries, read, examined, step = {}, 0, 0, 4
while at <= last do
  local fields = {}
  for number = at, math.min(at + step - 1, last) do
    fields[#fields + 1] = 'o' .. partition .. ':' .. text(number)
  end
  local values, before = redis.call('HMGET', data, unpack(fields)), #entries
  for i = 1, #values do
    if values[i] then
      entries[#entries + 1] = text(at + i - 1)
      entries[#entries + 1] = values[i]
      read = read + #values[i]
    end
    if read >= bytes or #entries >= 2 * limit then
      return {text(at + i - 1), entries}
    end
  end
  at, examined = at + #values, examined + #values
  step = #entries > before and 4 or math.min(step * 4, ARGUMENT_LIMIT)
  if examined >= ENTRY_LIMIT then
    return {text(at - 1), entries}
  end
end
return {false, entries}
