-- Takes Redisson's fair lock, or joins its queue.
--   KEYS[1] lock   KEYS[2] counter   KEYS[3] queue: a list of owners   KEYS[4] zset, owner -> time-out in epoch ms
--   KEYS[5] index
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] '1' = a database checks the token
--   ARGV[4] ms that a waiter may be silent  ARGV[5] the client's epoch ms  ARGV[6] '1' = wait in the queue
-- Returns the fencing token, negative where the owner had the lock before, or {ms to wait, holder, 0, 0}. Repeating it is safe.
local now, patience = tonumber(ARGV[5]), tonumber(ARGV[4])
local head = head_alive(now)
if redis.call('EXISTS', KEYS[1]) == 0 and (not head or head == ARGV[1]) then
    if head then redis.call('LPOP', KEYS[3]) end
    redis.call('ZREM', KEYS[4], ARGV[1])
    for _, waiter in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
        redis.call('ZINCRBY', KEYS[4], -patience, waiter)
    end
    redis.call('HSET', KEYS[1], ARGV[1], 1)
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    local token = mint(ARGV[3], KEYS[5], 'F' .. KEYS[1])
    return token
end
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -(tonumber(redis.call('ZSCORE', KEYS[5], 'F' .. KEYS[1])) or (mint(ARGV[3], KEYS[5], 'F' .. KEYS[1])))
end
local left = redis.call('PTTL', KEYS[1])
if ARGV[6] == '1' and not redis.call('ZSCORE', KEYS[4], ARGV[1]) then
    local last = redis.call('LINDEX', KEYS[3], -1)
    local before = left
    if last then before = (tonumber(redis.call('ZSCORE', KEYS[4], last)) or now) - now end
    redis.call('ZADD', KEYS[4], math.max(before, 0) + patience + now, ARGV[1])
    redis.call('RPUSH', KEYS[3], ARGV[1])
end
local holder = redis.call('HKEYS', KEYS[1])[1]
if holder then
    require_holder(holder)
    notice_holder(KEYS[5], holder)
end
if left == -2 then left = 1000 end
return {left, holder or head or '', 0, 0}
