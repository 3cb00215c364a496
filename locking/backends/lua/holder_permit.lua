-- Returns who has permits.
--   KEYS[1] permits left   KEYS[2] counter   KEYS[3] `{name}:timeout`   KEYS[4] index (unused)   KEYS[5] permits in all
-- Returns {permits that are out, the one that ends first, ms until then (-1: never)}, or nothing when none is out.
local now = clock()
permits_left()
local out = redis.call('ZCOUNT', KEYS[3], '(' .. now, '+inf')
if out == 0 then return false end
local first = redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. now, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
return {out, shown(first[1]), left_of(first[2], now)}
