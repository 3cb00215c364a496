-- Put in front of the scripts that grant a lock, after token.lua.
--   KEYS[1] lock    a hash of one field: the owner, its value the hold count (Redisson's layout)
--   KEYS[4] index   see scripts.py

-- Gives the free lock to `owner`, and lists it: an entry of an earlier holder is written over.
local function hold(owner, ttl, keep)
    redis.call('HSET', KEYS[1], owner, 1)
    redis.call('PEXPIRE', KEYS[1], ttl)
    return mint(keep, KEYS[4], 'L' .. KEYS[1])
end

