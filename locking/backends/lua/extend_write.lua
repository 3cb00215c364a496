-- Has the write hold last for a time from now at least; never revives one.
--   KEYS[1] lock   KEYS[2] token (unused)
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] channel  ARGV[4] (unused)
--   ARGV[5] '1' = exactly that long
-- Returns 1, or 0 when the hold is gone.
if redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
local left = redis.call('PTTL', KEYS[1])
if ARGV[5] == '0' and left >= tonumber(ARGV[2]) then return 1 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- Waiters sleep until the end of the lease that they know, so they must hear of a shorter one.
if left > tonumber(ARGV[2]) then announce(ARGV[3], '1') end
return 1
