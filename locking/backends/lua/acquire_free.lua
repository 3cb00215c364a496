-- Put before handover.lua in the script that acquires: the common case, nobody has the lock and nobody stands in line,
-- is settled before the functions for the others are even made.
if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then return (hold(ARGV[1], ARGV[2], ARGV[3])) end

