-- Has a read hold last for a time from now at least; never revives one.
--   KEYS[1] lock   KEYS[2] token (unused)   KEYS[3] this hold's time-out key
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] channel  ARGV[4] what holds' time-out keys begin with, `{name}`
--   ARGV[5] '1' = exactly that long
-- Returns 1, or 0 when the hold is gone.
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 or redis.call('EXISTS', KEYS[3]) == 0 then return 0 end
if ARGV[5] == '0' and redis.call('PTTL', KEYS[3]) >= tonumber(ARGV[2]) then return 1 end
redis.call('PEXPIRE', KEYS[3], ARGV[2])
local left, ttl = redis.call('PTTL', KEYS[1]), tonumber(ARGV[2])
if left < ttl then
    redis.call('PEXPIRE', KEYS[1], ttl)
elseif left > ttl then
    -- This may have been the longest hold. Writers sleep until the end that they know, so they are notified.
    local longest = longest_left(KEYS[1], ARGV[4])
    if longest < left then
        redis.call('PEXPIRE', KEYS[1], math.max(longest, 1))
        announce(ARGV[3], '0')
    end
end
return 1
