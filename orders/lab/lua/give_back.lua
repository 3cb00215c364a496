-- Give units back to the keys that they were taken from, once per entry of the ledger.
-- KEYS  ledger, then units left
-- ARGV  the sale's id ('' for no ledger), then units to add, one number per key
-- Returns {} always
-- A key that is gone stays gone: with these few units alone it would pass for the whole stock.
if ARGV[1] ~= '' and redis.call('HDEL', KEYS[1], ARGV[1]) == 0 then
  return {}
end
for i = 2, #KEYS do
  if redis.call('EXISTS', KEYS[i]) == 1 then
    redis.call('INCRBY', KEYS[i], ARGV[i])
  end
end
return {}
