-- The next epoch of a partition: above all given before, and above what its fences hold.
local key, floor = KEYS[1], tonumber(ARGV[2])
local last = redis.call('GET', key) or '0'
if not string.find(last, '^%d+$') or tonumber(last) > EXACT then
  return redis.error_reply('CORRUPT ' .. key .. ' is no number of an epoch: remove it')
end
local epoch = text(math.max(tonumber(last), floor) + 1)
redis.call('SET', key, epoch)
return epoch
