-- Remove a product's stock from the first shard, and the product from those whose stock is kept, in one step:
-- whoever loads it meanwhile does so before or after, and the reconciler knows of it.
-- KEYS[1]  the product's hash in the first shard
-- KEYS[2]  the set of the products whose stock is kept
-- ARGV[1]  sku
-- Returns {}
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
return {}
