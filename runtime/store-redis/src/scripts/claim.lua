-- Writes a claim into the fence of a partition in this shard. Does not change the fence if it has a claim with a higher
-- epoch, or another claim with the same epoch. Returns the fence as it is after the call.
local data, partition, claim = KEYS[1], ARGV[2], ARGV[3]

-- Returns whether epoch `a` is lower than epoch `b`. An epoch has eight bytes, in little-endian order.
local function is_older(a, b)
  local a2, a1 = unpack8('<I4I4', a)
  local b2, b1 = unpack8('<I4I4', b)
  return a1 < b1 or (a1 == b1 and a2 < b2)
end

local fence = read_fence(data, partition)
local fence_epoch, own_epoch = fence and sub(claim_of(fence), 1, 8), sub(claim, 1, 8)
if fence and fence_epoch ~= own_epoch and not is_older(fence_epoch, own_epoch) then
  return fence
end
if fence_epoch == own_epoch and claim_of(fence) ~= claim then
  -- Another process has a claim with the same epoch: the server went back in time, lost the first grant of the epoch,
  -- and granted the epoch again.
  return fence
end
if not fence then
  -- If another program has removed the fence, the outbox may still have messages of earlier commits. Continue the
  -- numbering of these commits.
  local begun = redis.call('HGET', data, 'b' .. partition) or '0'
  local number = string.find(begun, '^%d+$') and tonumber(begun)
  if not number or number >= EXACT then
    corrupt_field('b' .. partition, data, 'number of a commit')
  end
  fence = string.rep('\0', layout.FENCE_NUMBER - 1) .. pack('<I8', number) .. NO_ANSWER
end
fence = char(layout.FENCE_FORMAT) .. claim .. sub(fence, layout.FENCE_NUMBER)
-- Write the field `b` first, in a separate call. The claim is then a transaction of two commands in the server's
-- append-only file. The end of this transaction also ends a transaction that an earlier crash may have left open (see
-- docs/internals/storage.md).
redis.call('HSET', data, 'b' .. partition, text(unpack8('<I8', fence, layout.FENCE_NUMBER)))
redis.call('HSET', data, 'f' .. partition, fence)
return fence
