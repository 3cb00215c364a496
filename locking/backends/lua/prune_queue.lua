-- Put in front of the fair lock's scripts. Redisson's queue keeps a waiter who said nothing until its time-out.
--   KEYS[3] queue: a list of owners   KEYS[4] zset, owner -> time-out in epoch ms

-- Drops those at the head of the queue whose time-out has passed, and returns the first of the rest, if any.
local function head_alive(now)
    while true do
        local head = redis.call('LINDEX', KEYS[3], 0)
        if not head or tonumber(redis.call('ZSCORE', KEYS[4], head) or 0) > now then return head end
        redis.call('ZREM', KEYS[4], head)
        redis.call('LPOP', KEYS[3])
    end
end
