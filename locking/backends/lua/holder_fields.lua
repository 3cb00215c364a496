-- Returns who has a read-write lock or a fair lock.
--   KEYS[1] lock
--   ARGV[1] what the time-out keys of read holds begin with, `{name}`
-- Returns {holders, one of them, ms left of the lock}, or nothing when it is free.
local reading = redis.call('HGET', KEYS[1], 'mode') == 'read'
local holders, one = 0, nil
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    require_holder(field)
    -- The field of a reader whose hold has ended stays as long as others read.
    if field ~= 'mode' and (not reading or hold_left(KEYS[1], ARGV[1], field) >= 0) then
        holders, one = holders + 1, string.gsub(field, ':write$', '')
    end
end
if holders == 0 then return false end
return {holders, one, redis.call('PTTL', KEYS[1])}
