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

-- Returns the ms from `now` to the end of a permit, -1 if it has none: Redisson then writes a number of its own, such
-- as 922337203685477, which is thirty thousand years away. 1e14 is the year 5138.
local function left_of(ends, now)
    if tonumber(ends) > 1e14 then return -1 end
    return tonumber(ends) - now
end

-- Returns the count of permits left, if there is one. A Redisson count-down latch, or a number of any use, is the same
-- string: only what shows that it counts permits makes it one, else this fails, see guard.lua.
--   KEYS[2] counter: our semaphores had one   KEYS[5] permits in all, noted by the script that acquires
local function permits_left()
    local count = redis.call('GET', KEYS[1])
    if not count then return nil end
    if not tonumber(count) or redis.call('EXISTS', KEYS[5], KEYS[3], KEYS[2]) == 0 then error({err = 'NOTALOCK'}) end
    return tonumber(count)
end
