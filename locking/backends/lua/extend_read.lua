-- Gives a read hold a new length from now; never revives one.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] this hold's time-out key
--   ARGV[1] owner  ARGV[2] ttl in ms
-- Returns 1, or 0 when the hold is gone.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 or redis.call('PEXPIRE', KEYS[3], ARGV[2]) == 0 then return 0 end
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
return 1
