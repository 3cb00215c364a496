-- Lists what a client of another language holds of `KEYS[1]`, if that is a lock: such a client doesn't list it.
--   KEYS[1] what may be a lock   KEYS[2] token (unused)   KEYS[3] queue (unused)   KEYS[4] index
-- Returns how many such holds it has.
if redis.call('TYPE', KEYS[1]).ok ~= 'hash' or redis.call('HLEN', KEYS[1]) > 1000 then return 0 end
local found = 0
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    if is_holder(field) and is_external(field) then
        notice_holder(KEYS[4], field)
        found = found + 1
    end
end
return found
