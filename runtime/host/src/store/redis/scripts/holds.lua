-- Whether there is anything but what partitions keep of themselves.
local data = KEYS[1]
if redis.call('HLEN', data) > CHUNK then
  return 1
end
for _, field in ipairs(redis.call('HKEYS', data)) do
  if not string.find(field, '^[fbq]') then
    return 1
  end
end
return 0
