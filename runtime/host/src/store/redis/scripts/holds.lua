-- Whether there is anything but what partitions keep of themselves.
local data, cursor = KEYS[1], '0'
repeat
  local scanned = redis.call('HSCAN', data, cursor, 'COUNT', CHUNK)
  cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    if not string.find(scanned[2][i], '^[fbq]') then
      return 1
    end
  end
until cursor == '0'
return 0
