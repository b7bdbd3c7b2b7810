-- Writes a claim into a fence, unless a newer one is there. Answers the fence as it then is.
local data, partition, claim = KEYS[1], ARGV[2], ARGV[3]
local NO_COMMIT = string.rep('\0', 24)

-- Two epochs, as eight bytes with the lowest first.
local function is_older(a, b)
  local a2, a1 = unpack8('<I4I4', a)
  local b2, b1 = unpack8('<I4I4', b)
  return a1 < b1 or (a1 == b1 and a2 < b2)
end

local fence = redis.call('HGET', data, 'f' .. partition)
if fence and not is_fence(fence) then
  return bad_fence(data, partition)
end
local theirs, ours = fence and sub(fence, 2, 9), sub(claim, 1, 8)
if fence and theirs ~= ours and not is_older(theirs, ours) then
  return fence
end
if theirs == ours and sub(fence, 2, 17) ~= claim then
  -- Another process has just got the same epoch, from a server that went back in time.
  return fence
end
fence = char(FENCE_FORMAT) .. claim .. (fence and sub(fence, 18) or NO_COMMIT)
-- Two writes, as in a commit and for the same reason.
redis.call('HSET', data, 'b' .. partition, text(unpack8('<I8', fence, 18)))
redis.call('HSET', data, 'f' .. partition, fence)
return fence
