-- Takes the place of announce.lua in a cluster: from Redis 7 on, Redisson listens there by SSUBSCRIBE, which PUBLISH
-- doesn't reach; older clients listen by SUBSCRIBE, which SPUBLISH doesn't reach. No client listens by both.
-- Returns how many hear it on this server.
local function announce(channel, message)
    local heard = redis.call('PUBLISH', channel, message)
    -- Redis 6 has neither the command nor the number that tells its version.
    if redis.REDIS_VERSION_NUM then heard = heard + redis.call('SPUBLISH', channel, message) end
    return heard
end
