-- Has the lease of Redisson's fair lock last for a time from now at least; never revives one.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] queue   KEYS[4] time-outs (unused)
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] what every waiter's channel begins with  ARGV[4] (unused)
--   ARGV[5] '1' = exactly that long
-- Returns 1, or 0 when the owner doesn't hold the lock.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local left = redis.call('PTTL', KEYS[1])
if ARGV[5] == '0' and left >= tonumber(ARGV[2]) then return 1 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Waiters sleep until the end of the lease that they know. All hear of a shorter one, for the first may leave before it.
local waiters = left > tonumber(ARGV[2]) and redis.call('LRANGE', KEYS[3], 0, -1) or {}
for _, waiter in ipairs(waiters) do announce(ARGV[3] .. ':' .. waiter, '0') end
return 1
