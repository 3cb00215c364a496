-- Looks through a stretch of an index for keys that begin with something.
--   KEYS[1] index
--   ARGV[1] first rank   ARGV[2] last rank   ARGV[3] what keys shall begin with
-- Returns {how many entries it looked at, members and scores, one after the other}.
local stretch = redis.call('ZRANGE', KEYS[1], ARGV[1], ARGV[2])
local wanted, size, found = ARGV[3], #ARGV[3], {}
for _, member in ipairs(stretch) do
    local letter, start = string.byte(member), 2
    if letter == 82 or letter == 83 then start = string.find(member, ' ', 2, true) + 1 end -- R and S name the owner first
    if string.sub(member, start, start + size - 1) == wanted then
        found[#found + 1] = member
        found[#found + 1] = redis.call('ZSCORE', KEYS[1], member)
    end
end
return {#stretch, found}
