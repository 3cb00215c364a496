-- Put in front of every script that grants something. It expects
--   KEYS[2] token   the last fencing token of this name (Redisson's counter)

-- A token is the server's time in microseconds, or one more than the last if that clock stands or went back:
-- a counter that was flushed, or lost in a failover, therefore never runs behind what the database has seen.
-- A counter that a database checks (keep = '1') stays for ever; any other may go after a day, so that a million
-- names don't fill the memory. KEEPTTL leaves a counter as it is that Redisson made (without a ttl).
local function mint(keep)
    local time = redis.call('TIME')
    local now = time[1] * 1000000 + time[2]
    local last = tonumber(redis.call('GET', KEYS[2]) or 0)
    local token = now
    if last >= now then token = last + 1 end
    local text = string.format('%.0f', token)
    if keep == '1' then redis.call('SET', KEYS[2], text)
    elseif last > 0 then redis.call('SET', KEYS[2], text, 'KEEPTTL')
    else redis.call('SET', KEYS[2], text, 'EX', 86400) end
    return token, now, text
end
