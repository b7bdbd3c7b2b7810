-- The next epoch of a partition: above all given before, and above what its fences hold.
local key, floor = KEYS[1], tonumber(ARGV[2])
local last = tonumber(redis.call('GET', key) or 0)
if not last then
  return redis.error_reply('CORRUPT ' .. key .. ' is not the number of an epoch: remove it')
end
local epoch = text(math.max(last, floor) + 1)
redis.call('SET', key, epoch)
return epoch
