-- Gives the write hold a new length from now; never revives one.
--   KEYS[1] lock   KEYS[2] token (unused)
--   ARGV[1] owner  ARGV[2] ttl in ms
-- Returns 1, or 0 when the hold is gone.
if redis.call('HEXISTS', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
return redis.call('PEXPIRE', KEYS[1], ARGV[2])
