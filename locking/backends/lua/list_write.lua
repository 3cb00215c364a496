-- Returns what is true now of one write hold of the index, and takes it out of the index if it has ended.
--   KEYS[1] lock   KEYS[2] token   KEYS[3] (unused)   KEYS[4] index
--   ARGV[1] member   ARGV[2] channel
-- Returns {owner, hold count, ms left (-1: no end), token, waiters, listed since in µs}, or nothing.
local since = redis.call('ZSCORE', KEYS[4], ARGV[1])
if since and redis.call('HGET', KEYS[1], 'mode') == 'write' then
    for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
        local owner, writes = string.gsub(field, ':write$', '')
        if writes == 1 then
            local token = is_external(owner) and '0' or since
            local waiters = redis.call('PUBSUB', 'NUMSUB', ARGV[2])[2]
            return {owner, tonumber(redis.call('HGET', KEYS[1], field)), redis.call('PTTL', KEYS[1]), token, waiters, since}
        end
    end
end
redis.call('ZREM', KEYS[4], ARGV[1])
return false
