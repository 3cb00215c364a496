-- Take as many units as there are, up to those wanted.
-- KEYS[1]  units left in one segment
-- ARGV[1]  units wanted
-- Returns {taken} | {} when the segment isn't loaded
local left = tonumber(redis.call('GET', KEYS[1]) or '')
if not left then
  return {}
end
local taken = math.max(0, math.min(left, tonumber(ARGV[1])))
redis.call('DECRBY', KEYS[1], taken)
return {taken}
