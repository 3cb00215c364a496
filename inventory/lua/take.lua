-- Take every line or nothing.
-- KEYS  units left, one key a line
-- ARGV  units wanted, one number a line
-- Returns {'taken', units…} | {'short', left…} | {'missing'}
local left = redis.call('MGET', unpack(KEYS))
local short = false
for i = 1, #KEYS do
  if not left[i] then
    return {'missing'}
  end
  left[i] = tonumber(left[i])
  short = short or left[i] < tonumber(ARGV[i])
end
if short then
  return {'short', unpack(left)}
end
local taken = {'taken'}
for i, key in ipairs(KEYS) do
  redis.call('DECRBY', key, ARGV[i])
  taken[i + 1] = tonumber(ARGV[i])
end
return taken
