-- Reads some of the key records with `HSCAN`. Returns the next cursor, and the time by which the caller decides which
-- records have expired. For each key record, also returns the key, the record without the state, and the length of the
-- state. If the caller names a status, returns only key records with this status.
local data, cursor, pattern, count, status = KEYS[1], ARGV[2], ARGV[3], ARGV[4], tonumber(ARGV[5])
local scanned = redis.call('HSCAN', data, cursor, 'COUNT', count, 'MATCH', pattern)
local rows = {}
for i = 1, #scanned[2], 2 do
  local key, record, size = sub(scanned[2][i], 2), scanned[2][i + 1], 0
  local sound = is_sound(record)
  if not status or (sound and byte(record, layout.KEY_RECORD + 1) == status) then
    if sound and has(byte(record, 2), layout.LARGE) then
      size = redis.call('HSTRLEN', data, 's' .. key)
    elseif sound then
      size = math.max(#record + 1 - state_at(record), 0)
      record = sub(record, 1, state_at(record) - 1)
    else
      -- The record is damaged. Return only its beginning, which is enough for the caller to detect the damage.
      record = sub(record, 1, layout.SHORTEST)
    end
    rows[#rows + 1] = {key, record, size}
  end
end
local expiry_now = expiry_times(time_now())
return {scanned[1], text(expiry_now), rows}
