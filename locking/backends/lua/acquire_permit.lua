-- Takes a permit.
--   KEYS[1] permits left   KEYS[2] counter   KEYS[3] `{name}:timeout`   KEYS[4] index   KEYS[5] permits in all
--   ARGV[1] permit  ARGV[2] ttl in ms  ARGV[3] '1' = a database checks the token, see token.lua
--   ARGV[4] permits in all, unless already set  ARGV[5] channel
-- Returns the fencing token, negative where the permit was out before, or {ms until the first permit ends (-1: never), its name, 0, 0}. Repeating it is safe.
local now, left = clock(), permits_left()
if left then redis.call('SET', KEYS[5], left + redis.call('ZCARD', KEYS[3]), 'NX') end
local ended = redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', now)
if not left then -- permits that are out stay out even if the count of those left was lost
    left = ARGV[4] - redis.call('ZCARD', KEYS[3])
    redis.call('SET', KEYS[1], left)
    redis.call('SET', KEYS[5], ARGV[4])
elseif ended > 0 then
    left = redis.call('INCRBY', KEYS[1], ended)
    announce(ARGV[5], left)
end
local is_new = not redis.call('ZSCORE', KEYS[3], ARGV[1])
if is_new then
    if left < 1 then
        local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
        if #first == 0 then return {-1, '', 0, 0} end
        return {left_of(first[2], now), shown(first[1]), 0, 0}
    end
    redis.call('DECR', KEYS[1])
end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
local token = mint(ARGV[3], KEYS[4], 'S' .. ARGV[1] .. ' ' .. KEYS[1])
return is_new and token or -token
