-- Shared by acquire.lua and release.lua, put in front of each. It expects
--   KEYS[1] lock    a hash of one field: the owner, its value the hold count (Redisson's layout)
--   KEYS[2] token   see token.lua
--   KEYS[3] queue   a list of places: "<owner> <ttl ms> <keep> <channel>", first come first
--   KEYS[4] index   see index.py

local function parts(place)
    return string.match(place, '^(%S+) (%d+) (%d) (%S+)$')
end

-- Gives the free lock to the first waiter that still listens to its own channel, on this server. Nobody there means
-- that its process is gone, so that a dead waiter costs nothing.
-- The listeners are counted before anything is said: PUBLISH also reaches replicas and the other nodes of a cluster,
-- and a waiter who listens on a master of yesterday would take the message for a lock that it wasn't given. It is
-- only told to ask again, and finds the right server by that.
local function hand_over()
    while true do
        local place = redis.call('LPOP', KEYS[3])
        if not place then return false end
        local owner, ttl, keep, channel = parts(place)
        if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
            local _, now, text = hold(owner, ttl, keep)
            redis.call('PUBLISH', channel, owner .. ' ' .. text .. ' ' .. string.format('%.0f', now))
            return true
        end
        redis.call('PUBLISH', channel, owner)
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
