-- Take every line or nothing; each line's units are spread over several keys, and a line may take from all of them.
-- KEYS     units left: the segments of the first line, those of the second …
-- ARGV[1]  segments a line
-- ARGV[2]  the segment to begin with, from 0
-- ARGV[3…] units wanted, one number a line
-- Returns {'taken', units of each key…} | {'short', left of each line…} | {'missing'}
local width, first = tonumber(ARGV[1]), tonumber(ARGV[2])
local left = redis.call('MGET', unpack(KEYS))
local totals, short = {}, false
for line = 1, #KEYS / width do
  totals[line] = 0
  for segment = 1, width do
    local i = (line - 1) * width + segment
    if not left[i] then
      return {'missing'}
    end
    left[i] = tonumber(left[i])
    totals[line] = totals[line] + math.max(0, left[i])
  end
  short = short or totals[line] < tonumber(ARGV[line + 2])
end
if short then
  return {'short', unpack(totals)}
end
local taken = {'taken'}
for i = 1, #KEYS do
  taken[i + 1] = 0
end
for line = 1, #totals do
  local wanted = tonumber(ARGV[line + 2])
  for step = 0, width - 1 do
    local i = (line - 1) * width + (first + step) % width + 1
    local units = math.min(wanted, left[i])
    if units > 0 then -- a drained segment is skipped
      redis.call('DECRBY', KEYS[i], units)
      taken[i + 1] = units
      wanted = wanted - units
    end
  end
end
return taken
