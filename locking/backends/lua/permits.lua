-- Put in front of the scripts of a semaphore whose permits expire (Redisson's RPermitExpirableSemaphore).
--   KEYS[1] permits left: a string   KEYS[3] `{name}:timeout`: a zset, permit -> end in epoch ms

-- Returns epoch ms by this server's clock.
local function clock()
    local time = redis.call('TIME')
    return time[1] * 1000 + math.floor(time[2] / 1000)
end

-- Returns a permit as its user sees it. Redisson stores 16 raw bytes and shows them in hexadecimal.
local function shown(permit)
    if #permit ~= 16 then return permit end
    return (string.gsub(permit, '.', function(byte) return string.format('%02x', string.byte(byte)) end))
end

-- Returns a permit as this server keeps it, whichever way it was shown.
local function stored(permit)
    if #permit ~= 32 or string.find(permit, '%X') then return permit end
    return (string.gsub(permit, '%x%x', function(digits) return string.char(tonumber(digits, 16)) end))
end
