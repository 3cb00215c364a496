-- Put before handoff.lua in the script that acquires: the common case, the lock is free and its queue is empty,
-- is settled before the functions for the others are even made.
if ARGV[3] == '1' then
    if redis.call('EXISTS', KEYS[1], KEYS[3]) == 0 then return (hold(ARGV[1], ARGV[2], '1')) end
elseif redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[2]) == 0 then
    return (hold(ARGV[1], ARGV[2], '')) -- nor does the name have a counter that would have to rise
end

