-- Returns who has a lock, as {hold count, owner, ms left (-1: no end)}, or nothing when it is free.
--   KEYS[1] lock
local fields = redis.call('HGETALL', KEYS[1])
local first = fields[1] == 'mode' and 3 or 1
local owner = fields[first]
if not owner then return false end
require_holder(owner)
return {tonumber(fields[first + 1]) or 1, owner, redis.call('PTTL', KEYS[1])}
