-- Put before handoff.lua in the script that releases: the common case, an empty queue.
-- HDEL of the only field deletes the key. Redisson's clients are notified in any case.
local left = redis.call('EXISTS', KEYS[3]) == 1 and redis.call('PTTL', KEYS[1]) or nil
local was_held = redis.call('HDEL', KEYS[1], ARGV[1]) == 1
if was_held and not left then
    redis.call('ZREM', KEYS[4], 'L' .. KEYS[1])
    announce(ARGV[2], '0')
    return 1
end

