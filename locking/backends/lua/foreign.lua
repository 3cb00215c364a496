-- Put in front of the scripts that may meet a lock of another client of the protocol.

-- Our owners are UUIDs of version 8; anything else is another client (Redisson: version 4).
local function is_foreign(owner)
    return string.sub(owner, 15, 15) ~= '8'
end

-- Lists a hold of such a client from the moment at which it is first met: it doesn't list itself.
--   KEYS[4] index
local function notice(member)
    local time = redis.call('TIME')
    redis.call('ZADD', KEYS[4], 'NX', string.format('%.0f', time[1] * 1000000 + time[2]), member)
end
