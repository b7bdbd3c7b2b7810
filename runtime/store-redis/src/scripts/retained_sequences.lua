-- Finds the sequences of the retained messages of a key between two sequences (inclusive), with `HSCAN`. `pattern`
-- matches the fields of all retained messages of the key. One call examines a limited number of fields. Returns the
-- next cursor (0 at the end), and the sequences in any order. The calls may return a sequence more than once.
local log, pattern, first, last, cursor = KEYS[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local found, examined = {}, 0
repeat
  local scanned = redis.call('HSCAN', log, cursor, 'COUNT', ARGUMENT_LIMIT, 'MATCH', pattern)
  cursor = scanned[1]
  for i = 1, #scanned[2], 2 do
    local sequence = sub(scanned[2][i], -8)
    if not is_after(first, sequence) and not is_after(sequence, last) then
      found[#found + 1] = sequence
    end
  end
  examined = examined + ARGUMENT_LIMIT
until cursor == '0' or examined >= 5 * ARGUMENT_LIMIT
return {cursor, found}
