-- Raises the token of a lock that the owner holds to at least a given one; never lowers it.
--   KEYS[1] lock   KEYS[2] counter   KEYS[3] queue (unused)   KEYS[4] index
--   ARGV[1] owner  ARGV[2] token  ARGV[3] '1' = a database checks the token, see token.lua
-- Returns 1, or 0 when the owner doesn't hold the lock.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('ZADD', KEYS[4], 'GT', ARGV[2], 'L' .. KEYS[1], ARGV[2], '~')
local counter = redis.call('GET', KEYS[2])
if (counter or ARGV[3] == '1') and tonumber(counter or 0) < tonumber(ARGV[2]) then
    redis.call('SET', KEYS[2], ARGV[2], 'KEEPTTL')
end
return 1
