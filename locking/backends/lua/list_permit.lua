-- Returns what is true now of one permit of the index, and takes it out of the index if it has ended.
--   KEYS[1] permits left (unused)   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`   KEYS[4] index
--   ARGV[1] member   ARGV[2] channel   ARGV[3] permit
-- Returns {owner, 1, ms left (-1: no end), token, waiters, listed since in µs}, or nothing.
local ends, now = tonumber(redis.call('ZSCORE', KEYS[3], stored(ARGV[3])) or 0), clock()
local since = redis.call('ZSCORE', KEYS[4], ARGV[1])
if ends <= now or not since then
    redis.call('ZREM', KEYS[4], ARGV[1])
    return false
end
local token = stored(ARGV[3]) == ARGV[3] and since or '0' -- Redisson's have none
return {ARGV[3], 1, left_of(ends, now), token, redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2], since}
