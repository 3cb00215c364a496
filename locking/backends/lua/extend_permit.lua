-- Has a permit last for a time from now at least; never revives one.
--   KEYS[1] permits left   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`
--   ARGV[1] permit  ARGV[2] ttl in ms  ARGV[3] channel  ARGV[4] (unused)
--   ARGV[5] '1' = exactly that long
-- Returns 1, or 0 when the permit has ended.
local now = clock()
local ends = tonumber(redis.call('ZSCORE', KEYS[3], stored(ARGV[1])) or 0)
if ends <= now then return 0 end
if ARGV[5] == '0' and ends >= now + ARGV[2] then return 1 end
redis.call('ZADD', KEYS[3], now + ARGV[2], stored(ARGV[1]))
-- Waiters sleep until the end of the first permit as they know it, so an earlier end must be announced.
if now + ARGV[2] < ends then announce(ARGV[3], redis.call('GET', KEYS[1]) or '0') end
return 1
