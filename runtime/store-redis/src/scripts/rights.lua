-- Returns an error reply that names the commands that the Redis user of the connection may not run. `checks` lists the
-- needed commands, each with arguments. Returns nil if the user may run all of them.
local function rights_error(checks)
  local missing, is_renamed = {}, false
  for _, command in ipairs(checks) do
    -- The call fails if the server does not know the command, because its configuration renames the command.
    local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(command))
    is_renamed = is_renamed or not is_known
    if not (is_known and is_allowed) then
      missing[#missing + 1] = string.lower(command[1])
    end
  end
  if #missing == 0 then
    return nil
  end
  table.sort(missing)
  return redis.error_reply('NOPERM the user must be allowed to run these commands on ' .. KEYS[1]
    .. ' and on all keys with the same prefix: ' .. table.concat(missing, ', ')
    .. (is_renamed and '. The server renames at least one of them: remove rename-command from its configuration' or ''))
end
