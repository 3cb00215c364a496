-- Put in front of every script that grants something. It expects
--   KEYS[2] token   the last fencing token of this name (Redisson's counter)

-- A token is the server's time in microseconds, or one more than the last if that clock stands or went back:
-- a counter that was flushed, or lost in a failover, therefore never runs behind what the database has seen.
-- A counter that a database checks (keep = '1') stays for ever; any other may go after a day, so that a million
-- names don't fill the memory. KEEPTTL leaves a counter as it is that Redisson made (without a ttl).
local function mint(keep)
    local time = redis.call('TIME')
    local text = time[1] .. string.sub('00000' .. time[2], -6)
    local now = tonumber(text)
    local last
    if keep == '1' then
        last = redis.call('SET', KEYS[2], text, 'GET')
    else
        last = redis.call('SET', KEYS[2], text, 'KEEPTTL', 'GET')
        if not last then redis.call('PEXPIRE', KEYS[2], 86400000) end
    end
    if not last or tonumber(last) < now then return now, now, text end
    local token = last + 1
    text = string.format('%.0f', token)
    redis.call('SET', KEYS[2], text, 'KEEPTTL')
    return token, now, text
end
