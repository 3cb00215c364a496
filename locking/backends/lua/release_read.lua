-- Ends a read hold; the last one frees the lock and says so.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] this hold's time-out key   KEYS[4] index
--   ARGV[1] owner  ARGV[2] channel  ARGV[3] what holds' time-out keys begin with, `{name}`
-- Returns 1, or 0 when the owner has no read hold, or had one that has ended.
if redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZREM', KEYS[4], 'R' .. ARGV[1] .. ' ' .. KEYS[1])
local held = redis.call('DEL', KEYS[3])
-- Without this reader the lock may end sooner: with the longest of those who are left.
local longest = longest_left(KEYS[1], ARGV[3])
if longest >= 0 then
    redis.call('PEXPIRE', KEYS[1], math.max(longest, 1))
elseif redis.call('HGET', KEYS[1], 'mode') == 'read' then
    redis.call('DEL', KEYS[1])
    announce(ARGV[2], '0')
end
return held
