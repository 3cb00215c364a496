-- Gives a permit back.
--   KEYS[1] permits left   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`   KEYS[4] index
--   ARGV[1] permit  ARGV[2] channel
-- Returns 1, or 0 when the permit has ended already.
local score = redis.call('ZSCORE', KEYS[3], stored(ARGV[1]))
if not score then return 0 end
redis.call('ZREM', KEYS[3], stored(ARGV[1]))
redis.call('ZREM', KEYS[4], 'S' .. ARGV[1] .. ' ' .. KEYS[1])
announce(ARGV[2], redis.call('INCR', KEYS[1]))
return tonumber(score) > clock() and 1 or 0
