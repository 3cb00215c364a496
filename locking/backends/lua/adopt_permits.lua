-- Lists the permits that Redisson's clients have of a semaphore, if `KEYS[3]` is of one: they don't list theirs.
--   KEYS[1] permits left   KEYS[2] token (unused)   KEYS[3] `{name}:timeout`   KEYS[4] index
-- Returns how many such permits are out.
if redis.call('TYPE', KEYS[1]).ok ~= 'string' or redis.call('TYPE', KEYS[3]).ok ~= 'zset' then return 0 end
local found = 0
for _, permit in ipairs(redis.call('ZRANGEBYSCORE', KEYS[3], '(' .. clock(), '+inf', 'LIMIT', 0, 1000)) do
    if shown(permit) ~= permit then -- ours are texts already
        notice(KEYS[4], 'S' .. shown(permit) .. ' ' .. KEYS[1])
        found = found + 1
    end
end
return found
