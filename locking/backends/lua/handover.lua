-- Shared by acquire.lua and release.lua, put in front of each. It expects
--   KEYS[1] lock    a hash of one field: the owner, its value the hold count (Redisson's layout)
--   KEYS[2] token   see token.lua
--   KEYS[3] queue   a list of places: "<owner> <ttl ms> <keep> <channel>", first come first

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
