-- Writes a claim into a fence, unless a newer one is there. Answers the fence as it then is.
local fence_key, claim, epoch_at = KEYS[1], ARGV[4], 2
local NOTHING = string.rep('\0', 24)

-- Two epochs, as eight bytes with the lowest first.
local function is_older(a, b)
  local a2, a1 = unpack8('<I4I4', a)
  local b2, b1 = unpack8('<I4I4', b)
  return a1 < b1 or (a1 == b1 and a2 < b2)
end

need('string', fence_key)
local fence = redis.call('GET', fence_key)
if not fence then
  fence = char(3) .. claim .. NOTHING
elseif #fence < 33 or byte(fence, 1) ~= 3 then
  return redis.error_reply('CORRUPT ' .. fence_key .. ' is no fence that this version reads')
elseif not is_older(sub(claim, 1, 8), sub(fence, epoch_at, 9)) then
  if sub(claim, 1, 8) == sub(fence, epoch_at, 9) and claim ~= sub(fence, epoch_at, 17) then
    return fence
  end
  fence = char(3) .. claim .. sub(fence, 18)
else
  return fence
end
redis.call('SET', fence_key, fence)
return fence
