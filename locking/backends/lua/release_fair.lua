-- Ends a hold of Redisson's fair lock, or a waiter's place in its queue, and wakes the next in the queue.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] queue   KEYS[4] time-outs   KEYS[5] index
--   ARGV[1] owner  ARGV[2] what every waiter's channel begins with  ARGV[3] ms that a waiter may be silent
--   ARGV[4] epoch ms by the client's clock
-- Returns 1, or 0 when the owner doesn't hold the lock.
if redis.call('ZREM', KEYS[4], ARGV[1]) == 1 then
    local behind = false
    for _, waiter in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
        if behind then redis.call('ZINCRBY', KEYS[4], -tonumber(ARGV[3]), waiter) end
        if waiter == ARGV[1] then behind = true end
    end
    redis.call('LREM', KEYS[3], 0, ARGV[1])
end
local held = redis.call('HDEL', KEYS[1], ARGV[1])
if held == 1 then redis.call('ZREM', KEYS[5], 'F' .. KEYS[1]) end
if redis.call('EXISTS', KEYS[1]) == 0 then
    local head = head_alive(tonumber(ARGV[4]))
    if head then announce(ARGV[2] .. ':' .. head, '0') end
end
return held
