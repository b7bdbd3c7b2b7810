-- The scripts of the store in Redis. `cargo xtask lua` runs luacheck on all of them and adds the names that
-- common.lua declares, which stands in front of every script.
std = 'lua51'
max_line_length = 120
-- The globals that Redis gives to a script, and the constants of the host (script.rs).
read_globals = {'redis', 'KEYS', 'ARGV', 'struct', 'cmsgpack', 'cjson', 'bit', 'layout'}
