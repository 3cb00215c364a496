-- Ends a read hold; the last one frees the lock and says so.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] this hold's time-out key
--   ARGV[1] owner  ARGV[2] channel  ARGV[3] what other holds' time-out keys begin with, `{name}`
-- Returns 1, or 0 when the owner has no read hold.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('DEL', KEYS[3])
-- Without this reader the lock may end sooner: with the longest of those who are left (Redisson counts the holds
-- of one owner, so it may have several keys).
local longest = -1
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
    for i = tonumber(redis.call('HGET', KEYS[1], field)) or 0, 1, -1 do
        local left = redis.call('PTTL', ARGV[3] .. ':' .. field .. ':rwlock_timeout:' .. i)
        if left > longest then longest = left end
    end
end
if longest > 0 then
    redis.call('PEXPIRE', KEYS[1], longest)
elseif redis.call('HGET', KEYS[1], 'mode') == 'read' then
    redis.call('DEL', KEYS[1])
    announce(ARGV[2], '0')
end
return 1
