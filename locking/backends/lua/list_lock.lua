-- Tells of one ordinary or fair lock of the index what is true now, and takes it out of the index if it isn't held.
--   KEYS[1] lock   KEYS[2] token   KEYS[3] queue   KEYS[4] index
--   ARGV[1] member   ARGV[2] channel on which Redisson's waiters listen
-- Returns {owner, hold count, ms left (-1: no end), token (0: none known), waiters, listed since in µs}, or nothing.
local left = redis.call('PTTL', KEYS[1])
local owner, count = unpack(left ~= -2 and redis.call('HGETALL', KEYS[1]) or {})
if not owner or owner == 'mode' then
    redis.call('ZREM', KEYS[4], ARGV[1])
    return false
end
local since, token = redis.call('ZSCORE', KEYS[4], ARGV[1]) or '0', redis.call('GET', KEYS[2]) or '0'
local waiters = redis.call('LLEN', KEYS[3])
if is_foreign(owner) then
    -- The entry of a hold of ours that ended without a word doesn't date the one that followed.
    if tonumber(since) <= tonumber(token) then
        redis.call('ZREM', KEYS[4], ARGV[1])
        notice(ARGV[1])
        since = redis.call('ZSCORE', KEYS[4], ARGV[1])
    end
    token = '0' -- an ordinary lock of Redisson's doesn't count
else
    waiters = waiters + redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2]
end
return {owner, tonumber(count), left, token, waiters, since}
