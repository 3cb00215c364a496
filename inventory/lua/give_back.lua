-- Give units back to the keys that they were taken from.
-- KEYS  units left
-- ARGV  units to add, one number a key
-- Returns {} always
-- A key that is gone stays gone: with these few units alone it would pass for the whole stock.
for i, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    redis.call('INCRBY', key, ARGV[i])
  end
end
return {}
