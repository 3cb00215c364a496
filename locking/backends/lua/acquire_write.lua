-- Takes the write hold of Redisson's read-write lock.
--   KEYS[1] lock   KEYS[2] counter   KEYS[3] index
--   ARGV[1] owner (the field is `<owner>:write`)  ARGV[2] ttl in ms  ARGV[3] '1' = a database checks the token
-- Returns the fencing token, negative where the owner had it before, or {ms left, holder, 0, 0}. Repeating it is safe.
local field = ARGV[1] .. ':write'
if redis.call('HEXISTS', KEYS[1], field) == 1 then
    redis.call('PEXPIRE', KEYS[1], ARGV[2])
    return -(tonumber(redis.call('ZSCORE', KEYS[3], 'W' .. KEYS[1])) or (mint(ARGV[3], KEYS[3], 'W' .. KEYS[1])))
end
for _, other in ipairs(redis.call('HKEYS', KEYS[1])) do
    require_holder(other)
    if other ~= 'mode' then
        notice_holder(KEYS[3], other)
        return {redis.call('PTTL', KEYS[1]), other, 0, 0}
    end
end
redis.call('HSET', KEYS[1], 'mode', 'write', field, 1)
redis.call('PEXPIRE', KEYS[1], ARGV[2])
local token = mint(ARGV[3], KEYS[3], 'W' .. KEYS[1])
return token
