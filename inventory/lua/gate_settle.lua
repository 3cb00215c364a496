-- The sale is committed: strike its entry. Its units are gone from the stock already, unless that was rebuilt.
-- KEYS[1]   the ledger of this shard
-- KEYS[2…]  the hash of each line
-- ARGV[1]   the sale's id
-- ARGV[2…]  the epoch from which each line was taken
-- Returns {stocks that may not know of this sale, and were therefore removed}
local gone, unsure = redis.call('HDEL', KEYS[1], ARGV[1]) == 0, 0
for i = 2, #KEYS do
  if gone or redis.call('HGET', KEYS[i], 'epoch') ~= ARGV[i] then
    redis.call('DEL', KEYS[i])
    unsure = unsure + 1
  end
end
return {unsure}
