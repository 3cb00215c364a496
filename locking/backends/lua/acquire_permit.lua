-- Takes a permit of a semaphore whose permits expire (Redisson's RPermitExpirableSemaphore).
--   KEYS[1] permits left: a string   KEYS[2] token   KEYS[3] `{name}:timeout`: a zset, permit -> end in epoch ms
--   ARGV[1] permit  ARGV[2] ttl in ms  ARGV[3] '1' = keep the token counter for ever
--   ARGV[4] permits in all, if nobody has said so yet  ARGV[5] channel
-- Returns the fencing token, or {ms until the first permit ends, its name, 0, 0}. Repeating it is safe.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local ended = redis.call('ZRANGEBYSCORE', KEYS[3], 0, now)
redis.call('SET', KEYS[1], ARGV[4], 'NX')
if #ended > 0 then
    redis.call('ZREM', KEYS[3], unpack(ended))
    announce(ARGV[5], redis.call('INCRBY', KEYS[1], #ended))
end
if not redis.call('ZSCORE', KEYS[3], ARGV[1]) then
    if tonumber(redis.call('GET', KEYS[1])) < 1 then
        local first = redis.call('ZRANGE', KEYS[3], 0, 0, 'WITHSCORES')
        if #first == 0 then return {-1, '', 0, 0} end
        return {tonumber(first[2]) - now, first[1], 0, 0}
    end
    redis.call('DECR', KEYS[1])
end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
return (mint(ARGV[3]))
