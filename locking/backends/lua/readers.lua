-- Put in front of the scripts that count or end read holds. Each read hold has a key of its own, which tells when it
-- ends; the lock's hash may outlive it. Redisson counts the holds of one owner, so that it may have several such keys.
--   prefix  what those keys begin with, `{name}`

-- Returns the ms left of a reader's longest hold, 0 in its last one; -1 or less when it has none any more.
local function hold_left(lock, prefix, reader)
    local longest = -1
    for i = tonumber(redis.call('HGET', lock, reader)) or 0, 1, -1 do
        longest = math.max(longest, redis.call('PTTL', prefix .. ':' .. reader .. ':rwlock_timeout:' .. i))
    end
    return longest
end

-- Returns the ms left of the longest of all read holds, 0 in its last one; -1 or less when there are none any more.
local function longest_left(lock, prefix)
    local longest = -1
    for _, field in ipairs(redis.call('HKEYS', lock)) do
        if field ~= 'mode' then longest = math.max(longest, hold_left(lock, prefix, field)) end
    end
    return longest
end
