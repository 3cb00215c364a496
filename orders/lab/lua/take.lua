-- Take every line or nothing, and enter the sale in the ledger.
-- KEYS  ledger, then units left, one key per line
-- ARGV  the sale's id ('' for no ledger), its entry, then units wanted, one number per line
-- Returns {'taken'} | {'short', left…} | {'missing'}
local left, short = {}, false
for i = 2, #KEYS do
  left[i - 1] = tonumber(redis.call('GET', KEYS[i]) or '')
  if not left[i - 1] then
    return {'missing'}
  end
  short = short or left[i - 1] < tonumber(ARGV[i + 1])
end
if short then
  return {'short', unpack(left)}
end
for i = 2, #KEYS do
  redis.call('DECRBY', KEYS[i], ARGV[i + 1])
end
if ARGV[1] ~= '' then
  redis.call('HSET', KEYS[1], ARGV[1], redis.call('TIME')[1] .. ' ' .. ARGV[2])
end
return {'taken'}
