-- Put in front of the scripts that tell Redisson's clients something; announce_sharded.lua takes its place in a cluster.
-- Returns how many hear it on this server.
local function announce(channel, message)
    return redis.call('PUBLISH', channel, message)
end
