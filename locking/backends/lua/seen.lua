-- Tells who has a lock, as {owner, ms left (-1: no end)}, or {} when it is free.
--   KEYS[1] lock
local owner = redis.call('HKEYS', KEYS[1])[1]
if not owner then return {} end
return {owner, redis.call('PTTL', KEYS[1])}
