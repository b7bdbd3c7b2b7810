-- The next epoch of a partition: above all given before, and above what its fences hold.
local key, floor = KEYS[1], tonumber(ARGV[4])
need('string', key)
local epoch = math.max(tonumber(redis.call('GET', key) or 0), floor) + 1
redis.call('SET', key, string.format('%.0f', epoch))
return string.format('%.0f', epoch)
