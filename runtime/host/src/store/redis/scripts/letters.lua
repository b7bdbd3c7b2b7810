-- Reads letters between two places, in order, until they have so many bytes: the time, and for
-- each place and record.
local letters, order = KEYS[1], KEYS[2]
local from, to, limit, bytes = ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
need('hash', letters)
need('zset', order)
local rows, read = {}, 0
while #rows < 2 * limit and read < bytes do
  local some = math.min(limit, 16)
  local places = redis.call('ZRANGEBYLEX', order, from, to, 'LIMIT', 0, some)
  for _, place in ipairs(places) do
    local record = redis.call('HGET', letters, place)
    from = '(' .. place
    if record then
      rows[#rows + 1] = place
      rows[#rows + 1] = record
      read = read + #record
    end
  end
  if #places < some then
    break
  end
end
return {string.format('%.0f', time_now()), rows}
