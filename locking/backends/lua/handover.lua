-- Shared by acquire.lua and release.lua, put in front of each. It expects
--   KEYS[1] lock    a hash of one field: the owner, its value the hold count (Redisson's layout)
--   KEYS[2] token   the last fencing token of this name
--   KEYS[3] queue   a list of places: "<owner> <ttl ms> <keep> <channel>", first come first

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

local function hold(owner, ttl)
    redis.call('HSET', KEYS[1], owner, 1)
    redis.call('PEXPIRE', KEYS[1], ttl)
end

local function parts(place)
    return string.match(place, '^(%S+) (%d+) (%d) (%S+)$')
end

-- Gives the free lock to the first waiter that still listens. PUBLISH counts the listeners of a waiter's own
-- channel: none means that its process is gone, so that a dead waiter costs nothing.
local function hand_over()
    while true do
        local place = redis.call('LPOP', KEYS[3])
        if not place then return false end
        local owner, ttl, keep, channel = parts(place)
        local _, now, text = mint(keep)
        if redis.call('PUBLISH', channel, owner .. ' ' .. text .. ' ' .. string.format('%.0f', now)) > 0 then
            hold(owner, ttl)
            return true
        end
    end
end

-- Asks the first waiter that still listens to try for itself; it keeps its place.
local function wake_head()
    while true do
        local place = redis.call('LINDEX', KEYS[3], 0)
        if not place then return end
        local owner, _, _, channel = parts(place)
        if redis.call('PUBLISH', channel, owner) > 0 then return end
        redis.call('LPOP', KEYS[3])
    end
end

-- Our owners are UUIDs of version 8; anything else is another client of the protocol (Redisson: version 4).
local function is_foreign(owner)
    return string.sub(owner, 15, 15) ~= '8'
end
