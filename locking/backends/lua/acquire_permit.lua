-- Takes a permit.
--   KEYS[1] permits left   KEYS[2] token   KEYS[3] `{name}:timeout`   KEYS[4] index
--   ARGV[1] permit  ARGV[2] ttl in ms  ARGV[3] '1' = keep the token counter for ever
--   ARGV[4] permits in all, if nobody has said so yet  ARGV[5] channel
-- Returns the fencing token, or {ms until the first permit ends, its name, 0, 0}. Repeating it is safe.
local now = clock()
local ended = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
-- Permits that are out stay out even if the count of those left was lost.
if not redis.call('SET', KEYS[1], ARGV[4] - redis.call('ZCARD', KEYS[3]), 'NX') and ended > 0 then
    announce(ARGV[5], redis.call('INCRBY', KEYS[1], ended))
end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    if tonumber(redis.call('GET', KEYS[1])) < 1 then
        local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
        if #first == 0 then return {-1, '', 0, 0} end
        return {tonumber(first[2]) - now, shown(first[1]), 0, 0}
    end
    redis.call('DECR', KEYS[1])
end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
local token, _, text = mint(ARGV[3])
redis.call('ZADD', KEYS[4], text, 'S' .. ARGV[1] .. ' ' .. KEYS[1])
return token
