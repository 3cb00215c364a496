-- Returns what is true now of one ordinary or fair lock of the index, and takes it out of the index if it isn't held.
--   KEYS[1] lock   KEYS[2] counter (unused)   KEYS[3] queue   KEYS[4] index
--   ARGV[1] member   ARGV[2] channel on which Redisson's waiters listen
--   ARGV[3] of an ordinary lock: the queue that it would have as Redisson's fair lock
-- Returns {owner, hold count, ms left (-1: no end), token (0: none known), waiters, listed since in µs, the member's
-- first letter}, or nothing.
local left = redis.call('PTTL', KEYS[1])
local fields = left ~= -2 and redis.pcall('HGETALL', KEYS[1]) or {}
local owner, count = fields[1], fields[2] -- a key of another use isn't held
if not owner or not is_holder(owner) then
    redis.call('ZREM', KEYS[4], ARGV[1])
    return false
end
local since = redis.call('ZSCORE', KEYS[4], ARGV[1]) or '0'
local letter, token, waiters = string.sub(ARGV[1], 1, 1), since, redis.call('LLEN', KEYS[3])
if not is_external(owner) then
    waiters = waiters + redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2]
    return {owner, tonumber(count), left, token, waiters, since, letter}
end
-- Redisson's fair lock is one like any other until someone waits for it. `pcall`: our user may be without that key.
local line = ARGV[3] and redis.pcall('LLEN', ARGV[3]) or 0
if type(line) == 'number' and line > 0 then
    redis.call('ZREM', KEYS[4], ARGV[1])
    if redis.call('ZSCORE', KEYS[4], 'F' .. KEYS[1]) then return false end -- listed as such already
    letter, waiters = 'F', line
end
since = notice(KEYS[4], letter .. KEYS[1])
return {owner, tonumber(count), left, '0', waiters, since, letter} -- an ordinary lock of Redisson's doesn't count
