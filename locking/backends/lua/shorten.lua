-- Gives the owner's lease a new and shorter length from now, and tells those who wait.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] queue   KEYS[4] index
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] Redisson's channel of the lock
-- Returns 1, or 0 when the owner doesn't hold the lock.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
-- A waiter sleeps until the end of the lease that it knows. All are notified, for the first may leave before the new end.
announce(ARGV[3], '0')
wake_queue()
return 1
