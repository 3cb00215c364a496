-- Ends the write hold. Redisson lets a writer read as well: if read holds of its own are left, the lock turns into
-- a read lock.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] index
--   ARGV[1] owner  ARGV[2] channel
-- Returns 1, or 0 when the owner doesn't have the write hold.
if redis.call('HDEL', KEYS[1], ARGV[1] .. ':write') == 0 then return 0 end
redis.call('ZREM', KEYS[3], 'W' .. KEYS[1])
if redis.call('HLEN', KEYS[1]) > 1 then
    redis.call('HSET', KEYS[1], 'mode', 'read')
else
    redis.call('DEL', KEYS[1])
end
-- 1 wakes all: after a writer all readers may enter. A client of Redisson wakes with it the threads that sleep,
-- not the one that has just been refused and is about to sleep; 0 wakes one that sleeps or is about to.
if announce(ARGV[2], '1') > 0 then announce(ARGV[2], '0') end
return 1
