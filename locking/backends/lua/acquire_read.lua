-- Takes a read hold of Redisson's read-write lock.
--   KEYS[1] lock: a hash with `mode` = read | write and a field for each holder   KEYS[2] counter
--   KEYS[3] this hold's time-out key, `{name}:<owner>:rwlock_timeout:1`   KEYS[4] index
--   ARGV[1] owner  ARGV[2] ttl in ms  ARGV[3] '1' = a database checks the token
-- Returns the fencing token, negative where the owner had a hold before, or {ms left, holder, 0, 0}. Repeating it is safe.
local mode = redis.call('HGET', KEYS[1], 'mode')
if mode ~= 'read' then -- free, held by a writer, or by a lock of another kind
    for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
        require_holder(field)
        if field ~= 'mode' then
            notice_holder(KEYS[4], field)
            return {redis.call('PTTL', KEYS[1]), field, 0, 0}
        end
    end
end
if not mode then redis.call('HSET', KEYS[1], 'mode', 'read') end
local is_new = redis.call('HSET', KEYS[1], ARGV[1], 1) == 1 or redis.call('EXISTS', KEYS[3]) == 0
redis.call('SET', KEYS[3], 1, 'PX', ARGV[2])
-- The lock lives as long as its longest reader; each reader's own key tells when it is gone.
if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[2]) then redis.call('PEXPIRE', KEYS[1], ARGV[2]) end
local token = mint(ARGV[3], KEYS[4], 'R' .. ARGV[1] .. ' ' .. KEYS[1])
return is_new and token or -token
