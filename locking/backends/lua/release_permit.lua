-- Gives a permit back.
--   KEYS[1] permits left   KEYS[2] counter (unused)   KEYS[3] `{name}:timeout`   KEYS[4] index
--   KEYS[5] permits in all
--   ARGV[1] permit  ARGV[2] channel
-- Returns 1, or 0 when the permit has ended already.
local score = redis.call('ZSCORE', KEYS[3], stored(ARGV[1]))
if not score then return 0 end
redis.call('ZREM', KEYS[3], stored(ARGV[1]))
redis.call('ZREM', KEYS[4], 'S' .. ARGV[1] .. ' ' .. KEYS[1])
-- INCR would make a count that was lost begin at 1, and the semaphore small for good. Without the number of permits in
-- all it stays lost until the next acquisition creates it again.
local left, all = 1, redis.call('GET', KEYS[5])
if redis.call('EXISTS', KEYS[1]) == 1 then
    left = redis.call('INCR', KEYS[1])
    if not all then redis.call('SET', KEYS[5], left + redis.call('ZCARD', KEYS[3])) end
elseif all then
    left = all - redis.call('ZCARD', KEYS[3])
    redis.call('SET', KEYS[1], left)
end
announce(ARGV[2], left)
return tonumber(score) > clock() and 1 or 0
