-- Has leases last for a time from now at least, each only if its owner still has the lock; never revives or shortens one.
--   KEYS[i] lock
--   ARGV[2i-1] owner  ARGV[2i] ttl in ms
-- Returns a list: 1 = extended, 0 = not the owner's any more.
local held = {}
for i, key in ipairs(KEYS) do
    held[i] = 0
    -- Not `call`: a key of another use is lost, and the other leases are extended all the same.
    if redis.pcall('HEXISTS', key, ARGV[2 * i - 1]) == 1 then
        held[i] = 1
        if redis.call('PTTL', key) < tonumber(ARGV[2 * i]) then redis.call('PEXPIRE', key, ARGV[2 * i]) end
    end
end
return held
