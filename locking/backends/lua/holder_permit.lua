-- Tells who has permits.
--   KEYS[1] permits left (unused)   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`
-- Returns {permits that are out, the one that ends first, ms until then}, or nothing when none is out.
local now = clock()
local out = redis.call('ZCOUNT', KEYS[3], '(' .. now, '+inf')
if out == 0 then return false end
local first = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {out, shown(first[1]), tonumber(first[2]) - now}
