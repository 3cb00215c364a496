-- Raises the token counter of a lock that the owner holds to at least a given token; never lowers it.
--   KEYS[1] lock   KEYS[2] token   KEYS[3] queue (unused)   KEYS[4] index (unused)
--   ARGV[1] owner  ARGV[2] token  ARGV[3] '1' = keep the token counter for ever
-- Returns 1, or 0 when the owner doesn't hold the lock.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
if tonumber(redis.call('GET', KEYS[2]) or 0) < tonumber(ARGV[2]) then
    if ARGV[3] == '1' then redis.call('SET', KEYS[2], ARGV[2]) else redis.call('SET', KEYS[2], ARGV[2], 'KEEPTTL') end
end
return 1
