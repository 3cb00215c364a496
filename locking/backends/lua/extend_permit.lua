-- Gives a permit a new length from now; never revives one.
--   KEYS[1] permits left   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`
--   ARGV[1] permit  ARGV[2] ttl in ms  ARGV[3] channel
-- Returns 1, or 0 when the permit has ended.
local now = clock()
local ends = tonumber(redis.call('ZSCORE', KEYS[3], stored(ARGV[1])) or 0)
if ends <= now then return 0 end
redis.call('ZADD', KEYS[3], now + ARGV[2], stored(ARGV[1]))
-- Waiters sleep until the first permit ends, as they were told, so an earlier end must be told.
if now + ARGV[2] < ends then announce(ARGV[3], redis.call('GET', KEYS[1]) or '0') end
return 1
