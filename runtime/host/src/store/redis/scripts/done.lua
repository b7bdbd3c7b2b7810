-- Removes from the outbox what comes before an entry, unless the fence has another claim.
local fence_key, outbox, claim, first_left = KEYS[1], KEYS[2], ARGV[4], ARGV[5]
need('string', fence_key)
need('stream', outbox)
local fence = redis.call('GET', fence_key)
if not fence or sub(fence, 2, 17) ~= claim then
  return 0
end
return redis.call('XTRIM', outbox, 'MINID', '=', first_left)
