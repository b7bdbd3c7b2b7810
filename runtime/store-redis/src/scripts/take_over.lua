-- Moves key records of other partitions to the partition of the caller, increases their number of take-overs, and adds
-- their entries to the due index of this partition. The entries in the due indexes of the other partitions stay there.
-- The next read of such an index removes them.
local data, due, partition4 = KEYS[1], KEYS[2], ARGV[2]
local expiry_now = expiry_times(time_now())
local put, entries = {}, {}
for i = 3, #ARGV do
  local record = redis.call('HGET', data, ARGV[i])
  -- Do not change a damaged record. The load of the key reports the damage.
  if record and is_sound(record) and not has_expired(record, expiry_now)
    and sub(record, layout.PARTITION, layout.PARTITION + 3) ~= partition4 then
    local takeovers = (unpack8('<I4', record, layout.TAKEOVERS) + 1) % 4294967296
    put[#put + 1] = ARGV[i]
    put[#put + 1] = sub(record, 1, layout.PARTITION - 1) .. partition4 .. pack('<I4', takeovers)
      .. sub(record, layout.NEXT)
    if has(byte(record, 2), layout.DUE) then
      entries[#entries + 1] = unpack8('<I8', record, layout.DUE_AT)
      entries[#entries + 1] = sub(ARGV[i], 2)
    end
  end
end
with_all('ZADD', due, entries)
with_all('HSET', data, put)
