-- Shared by acquire.lua and release.lua, put in front of each. It expects
--   KEYS[1] lock    a hash of one field: the owner, its value the hold count (Redisson's layout)
--   KEYS[2] counter see token.lua
--   KEYS[3] queue   a list of entries: "<owner> <ttl ms> <keep> <channel>", first come first
--   KEYS[4] index   see scripts.py

local function parts(entry)
    return string.match(entry, '^(%S+) (%d+) (%d) (%S+)$')
end

-- Asks every waiter to try for itself: they keep their places. Those whose process is gone are dropped.
local function wake_queue()
    for _, entry in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
        local owner, _, _, channel = parts(entry)
        if redis.call('PUBLISH', channel, owner) == 0 then redis.call('LREM', KEYS[3], 1, entry) end
    end
end

-- Gives the free lock to the first waiter that still listens to its own channel, on this server. No subscriber means
-- that its process is gone, so that a dead waiter costs nothing.
-- The listeners are counted before anything is said: PUBLISH also reaches replicas and the other nodes of a cluster,
-- and a waiter who listens on a master of yesterday would take the message for a lock that it wasn't given. It is
-- only asked to try again, and finds the right server by that.
--   left  ms that were left of the lease before (-1: no end), nil when it had run out. The others sleep until then, so they
--         hear about a lease that ends earlier: its holder may be killed, and then nothing else wakes them.
local function hand_off(left)
    while true do
        local entry = redis.call('LPOP', KEYS[3])
        if not entry then return false end
        local owner, ttl, keep, channel = parts(entry)
        if redis.call('PUBSUB', 'NUMSUB', channel)[2] > 0 then
            local _, now, text = hold(owner, ttl, keep)
            redis.call('PUBLISH', channel, owner .. ' ' .. text .. ' ' .. string.format('%.0f', now))
            if left and (left < 0 or tonumber(ttl) < left) then wake_queue() end
            return true
        end
        redis.call('PUBLISH', channel, owner)
    end
end

-- A holder of another client wakes only those who listen to the lock's own channel. Waiters die with their process, so
-- the first waiter of each process listens: whichever processes die, one of those that are left hears the release.
-- An owner is `<uuid of the process>:<number>`.
local function process_of(entry)
    return string.match(entry, '^[^:]+')
end

-- Whether no other waiter of its process is before this one in the queue.
local function is_first_of_process(entry)
    local process = process_of(entry)
    for _, other in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
        if other == entry then return true end
        if process_of(other) == process then return false end
    end
end

-- Asks the first waiter of each process (of one, if it is named) to try for itself: they keep their places, and learn
-- whether they have to listen. Those whose process is gone are dropped.
local function wake_processes(only)
    local woken = {}
    for _, entry in ipairs(redis.call('LRANGE', KEYS[3], 0, -1)) do
        local process, owner, _, _, channel = process_of(entry), parts(entry)
        if not woken[process] and (not only or process == only) then
            woken[process] = redis.call('PUBLISH', channel, owner) > 0
            if not woken[process] then redis.call('LREM', KEYS[3], 1, entry) end
        end
    end
end
