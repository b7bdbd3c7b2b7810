-- Reads spilled events of a key between two bounds, in order, until they have so many bytes.
-- Answers whether there are no more, and the events. Nothing is there for a job that is not, or is
-- no more.
local jobs, key, limit, bytes = KEYS[1], ARGV[4], tonumber(ARGV[5]), tonumber(ARGV[6])
local from, to = ARGV[7], ARGV[8]
local record, spill = redis.call('HGET', jobs, key), of_key('spill', key)
if not record or (is_sound(record) and has_expired(record, time_now())) then
  return {1, {}}
end
need('zset', spill)
local found, read = {}, 0
while true do
  local part = redis.call('ZRANGEBYLEX', spill, from, to, 'LIMIT', 0, 16)
  for _, member in ipairs(part) do
    if #found > 0 and (#found >= limit or read + #member > bytes) then
      return {0, found}
    end
    found[#found + 1] = member
    read = read + #member
    from = '(' .. member
  end
  if #part < 16 then
    return {1, found}
  end
end
