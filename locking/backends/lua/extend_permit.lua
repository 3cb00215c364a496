-- Gives a permit a new length from now; never revives one.
--   KEYS[1] permits left (unused)   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`
--   ARGV[1] permit  ARGV[2] ttl in ms
-- Returns 1, or 0 when the permit has ended.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local score = redis.call('ZSCORE', KEYS[3], ARGV[1])
if not score or tonumber(score) <= now then return 0 end
redis.call('ZADD', KEYS[3], now + ARGV[2], ARGV[1])
return 1
