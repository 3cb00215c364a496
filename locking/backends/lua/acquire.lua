-- Takes the lock if it is free and the queue before the caller is empty; otherwise enqueues the entry, if one is given.
--   KEYS[1] lock   KEYS[2] counter   KEYS[3] queue   KEYS[4] index
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] '1' = a database checks the token, see token.lua
--   ARGV[4] the asker's entry in the queue, '' = don't wait in the queue
-- Returns the fencing token, negative where the owner had the lock before, or {ms left (-1: no end), holder, 1 = listen to the lock's channel too, server time µs}.
-- Repeating it is safe: the owner that has the lock is granted it again, with the same token.
local left = redis.call('PTTL', KEYS[1])
if left == -2 then -- free, with a queue: a live waiter in it comes first
    if not hand_off() then
        local token = hold(ARGV[1], ARGV[2], ARGV[3])
        return token
    end
    left = redis.call('PTTL', KEYS[1])
end
local holder, listen = redis.call('HKEYS', KEYS[1])[1], 0
if holder == ARGV[1] then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -(tonumber(redis.call('ZSCORE', KEYS[4], 'L' .. KEYS[1])) or (mint(ARGV[3], KEYS[4], 'L' .. KEYS[1])))
end
if ARGV[4] ~= '' then
    if not redis.call('LPOS', KEYS[3], ARGV[4]) then redis.call('RPUSH', KEYS[3], ARGV[4]) end
    -- Waiters ask again at least every 30 s; an expired queue has lost them all.
    redis.call('PEXPIRE', KEYS[3], 90000)
end
if is_external(holder) then
    require_holder(holder)
    notice(KEYS[4], 'L' .. KEYS[1])
    if ARGV[4] ~= '' and is_first_of_process(ARGV[4]) then listen = 1 end
end
local time = redis.call('TIME')
return {left, holder, listen, time[1] * 1000000 + time[2]}
