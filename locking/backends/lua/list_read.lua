-- Returns what is true now of one read hold of the index, and takes it out of the index if it has ended.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] (unused)   KEYS[4] index
--   ARGV[1] member   ARGV[2] channel   ARGV[3] owner   ARGV[4] what holds' time-out keys begin with, `{name}`
-- Returns {owner, hold count, ms left, token, waiters, listed since in µs}, or nothing.
local left = -1
if redis.call('HGET', KEYS[1], 'mode') == 'read' then left = hold_left(KEYS[1], ARGV[4], ARGV[3]) end
local since = redis.call('ZSCORE', KEYS[4], ARGV[1])
if left < 0 or not since then
    redis.call('ZREM', KEYS[4], ARGV[1])
    return false
end
local token = is_external(ARGV[3]) and '0' or since
local waiters = redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2]
return {ARGV[3], tonumber(redis.call('HGET', KEYS[1], ARGV[3])), left, token, waiters, since}
