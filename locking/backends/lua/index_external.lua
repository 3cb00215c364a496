-- Lists what a client of another language holds of `KEYS[1]`, if that is a lock: such a client doesn't list it.
--   KEYS[1] what may be a lock   KEYS[2] token (unused)   KEYS[3] queue (unused)   KEYS[4] index
-- Returns how many such holds it has.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HLEN', KEYS[1]) > 1000 then return 0 end
local mode, found = redis.call('HGET', KEYS[1], 'mode'), 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if is_holder(field) and is_external(field) then
        local owner = string.gsub(field, ':write$', '')
        local member = 'L' .. KEYS[1]
        if mode == 'read' then member = 'R' .. owner .. ' ' .. KEYS[1] end
        if mode == 'write' then member = 'W' .. KEYS[1] end
        if not redis.call('ZSCORE', KEYS[4], 'F' .. KEYS[1]) then notice(member) end -- known to be a fair lock
        found = found + 1
    end
end
return found
