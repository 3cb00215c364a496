-- Gives the present holder a new token, above the last one of this name and above one that a database has seen.
--   KEYS[1] lock   KEYS[2] token   KEYS[3] queue (unused)   KEYS[4] index (unused)
--   ARGV[1] owner  ARGV[2] token that the new one must exceed
-- Returns the new token, or 0 when the owner doesn't hold the lock.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
local token = math.max(tonumber(redis.call('GET', KEYS[2]) or 0), tonumber(ARGV[2])) + 1
redis.call('SET', KEYS[2], string.format('%.0f', token))
return token
