-- Take units and write into the ledger who has them, in one step.
-- KEYS[1]   the ledger of this shard: sale -> what it holds
-- KEYS[2…]  a hash with units and epoch for each line
-- ARGV[1]   the sale's id
-- ARGV[2]   'all' takes every line or nothing, 'some' whatever is there
-- ARGV[3…]  sku and units wanted, of each line
-- Returns {'taken', epoch and units of each line…} | {'short', left of each line…} | {'missing'}
local held = redis.call('HGET', KEYS[1], ARGV[1])
if held then -- asked again, because the first answer was lost
  local has, taken = {}, {'taken'}
  for _, line in ipairs(cjson.decode(held).lines) do
    has[line[1]] = line
  end
  for i = 2, #KEYS do
    local line = has[ARGV[2 * i - 1]] or {'', '', 0}
    taken[2 * i - 2], taken[2 * i - 1] = line[2], line[3]
  end
  return taken
end
local left, epochs, short = {}, {}, false
for i = 2, #KEYS do
  local stock = redis.call('HMGET', KEYS[i], 'units', 'epoch')
  if not stock[1] then
    return {'missing'}
  end
  left[i - 1], epochs[i - 1] = tonumber(stock[1]), stock[2]
  short = short or left[i - 1] < tonumber(ARGV[2 * i])
end
if short and ARGV[2] == 'all' then
  return {'short', unpack(left)}
end
local taken, lines = {'taken'}, {}
for i = 1, #left do
  local units = math.max(0, math.min(left[i], tonumber(ARGV[2 * i + 2])))
  taken[2 * i], taken[2 * i + 1] = epochs[i], units
  if units > 0 then
    redis.call('HINCRBY', KEYS[i + 1], 'units', -units)
    lines[#lines + 1] = {ARGV[2 * i + 1], epochs[i], units}
  end
end
if #lines > 0 then
  redis.call('HSET', KEYS[1], ARGV[1], cjson.encode({at = tonumber(redis.call('TIME')[1]), lines = lines}))
end
return taken
