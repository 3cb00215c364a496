-- There will be no order: strike the entry and give its units back, once, and only to the stock they came from.
-- KEYS[1]   the ledger of this shard
-- KEYS[2…]  the hash of each line
-- ARGV[1]   the sale's id
-- ARGV[2…]  epoch and units of each line
-- Returns {lines given back}
local back = 0
if redis.call('HDEL', KEYS[1], ARGV[1]) == 1 then
  for i = 2, #KEYS do
    -- A stock of another epoch was rebuilt from a database that had never lost these units.
    if redis.call('HGET', KEYS[i], 'epoch') == ARGV[2 * i - 2] then
      redis.call('HINCRBY', KEYS[i], 'units', ARGV[2 * i - 1])
      back = back + 1
    end
  end
end
return {back}
