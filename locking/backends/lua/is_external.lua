-- Put in front of the scripts that may meet a lock of another client of the protocol.

-- Our owners are UUIDs of version 8; anything else is another client (Redisson: version 4).
local function is_external(owner)
    return string.sub(owner, 15, 15) ~= '8'
end

-- Whether a field of a hash names the holder of a lock, ours or Redisson's.
local function is_holder(field)
    local owner = string.gsub(field, ':write$', '')
    return string.match(owner, '^%x+%-%x+%-%x+%-%x+%-%x+:%-?%d+$') ~= nil
end

-- Fails, see guard.lua, unless a field of KEYS[1] is one of a lock: what is stored there for another use would look
-- like a lock that is never released.
local function require_holder(field)
    if field ~= 'mode' and not is_holder(field) then error({err = 'NOTALOCK'}) end
end

-- Lists a hold of such a client from the moment at which it is first met: it doesn't list itself. Its score ends in
-- a half, unlike a token: an entry that a hold of ours has left behind doesn't date the one that followed.
-- Returns that moment, in µs.
local function notice(index, member)
    local since = redis.call('ZSCORE', index, member)
    if since and string.sub(since, -2) == '.5' then return since end
    local time = redis.call('TIME')
    since = string.format('%.0f.5', time[1] * 1000000 + time[2])
    redis.call('ZADD', index, since, member)
    redis.call('ZADD', index, 'GT', string.format('%.0f', math.ceil(since)), '~') -- stays the last, see token.lua
    return since
end

-- Lists what a field of KEYS[1] says that such a client holds.
local function notice_holder(index, field)
    if not is_external(field) then return end
    local owner, mode = string.gsub(field, ':write$', ''), redis.call('HGET', KEYS[1], 'mode')
    local member = 'L' .. KEYS[1]
    if mode == 'read' then member = 'R' .. owner .. ' ' .. KEYS[1] end
    if mode == 'write' then member = 'W' .. KEYS[1] end
    if not redis.call('ZSCORE', index, 'F' .. KEYS[1]) then notice(index, member) end -- known to be a fair lock
end
