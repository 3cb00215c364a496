-- Put in front of every script that grants something. It expects
--   KEYS[2] counter   the last fencing token of this name: Redisson's, kept only where a database checks tokens

-- Lists a grant under a new token: the server's time in microseconds, or one more than the highest known, where that
-- clock stopped or went back. `member` is the grant's entry in the index. The index's own entry '~' has the last token
-- of all names, so that a name needs no counter of its own and tokens rise all the same.
--   keep  '1': a database checks the token, keep the counter forever   '0': only write a counter that exists
--         '': it is known not to exist
-- KEEPTTL leaves a counter as it is that Redisson made (without a ttl).
local function mint(keep, index, member)
    local time = redis.call('TIME')
    local text = time[1] .. string.sub('00000' .. time[2], -6)
    local now, last = tonumber(text), 0
    if keep == '1' then
        last = tonumber(redis.call('SET', KEYS[2], text, 'GET') or 0)
    elseif keep == '0' then
        last = tonumber(redis.call('SET', KEYS[2], text, 'XX', 'KEEPTTL', 'GET') or 0)
    end
    -- Both scores rise, or the time isn't above them.
    if last < now and redis.call('ZADD', index, 'GT', 'CH', text, member, text, '~') == 2 then return now, now, text end
    local token = math.max(last, tonumber(redis.call('ZSCORE', index, '~') or 0)) + 1
    text = string.format('%.0f', token)
    redis.call('ZADD', index, text, member, text, '~')
    if keep ~= '' then redis.call('SET', KEYS[2], text, 'XX', 'KEEPTTL') end
    return token, now, text
end
