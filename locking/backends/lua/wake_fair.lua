-- Put in front of the script that releases where an operator breaks a lock. Redisson's fair lock looks like an ordinary
-- one until someone waits for it, on channels that an ordinary release doesn't reach: all who wait there are woken, and
-- Redisson lets in the one whose turn it is.
--   KEYS[1] lock   ARGV[1] owner   ARGV[2] Redisson's channel of the lock   ARGV[4] queue of Redisson's fair lock
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    local line = redis.pcall('LRANGE', ARGV[4], 0, -1) -- our user may be without that key
    for _, waiter in ipairs(line) do announce(ARGV[2] .. ':' .. waiter, '0') end
end
