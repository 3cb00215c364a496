-- Put behind every script, which is the function `script`: where a key is of another use, the error names that key, its
-- type and what to do.
--   expected  the type of KEYS[1], set by scripts.py
local done, reply = pcall(script)
if done then return reply end
local text = type(reply) == 'table' and reply.err or tostring(reply)
local found = redis.call('TYPE', KEYS[1]).ok
local is_other = string.find(text, 'WRONGTYPE', 1, true) and found ~= expected
if not is_other and not string.find(text, 'NOTALOCK', 1, true) then error(reply, 0) end
local what, fix = expected == 'string' and 'semaphore' or 'lock', ''
if expected == 'string' and found == 'string' and KEYS[5] then
    fix = "; if another program made it as a semaphore, set '" .. KEYS[5] .. "' to the number of its permits"
end
return redis.error_reply("NOTALOCK the key '" .. KEYS[1] .. "' holds a " .. found .. ' of another use, no ' .. what
    .. ': choose another name, set a KEY_PREFIX, or delete the key' .. fix)
