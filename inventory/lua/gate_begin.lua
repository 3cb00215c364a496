-- Begin to rebuild a stock, before the database is read: what is read then counts under this epoch only.
-- KEYS[1]  the product's hash in the first shard
-- KEYS[2]  the set of the products whose stock is kept
-- ARGV[1]  a random word
-- ARGV[2]  sku
-- Returns {epoch}, the one that somebody else has begun if there is one
local now = redis.call('TIME')
redis.call('HSETNX', KEYS[1], 'epoch', string.format('%.0f-%s', now[1] * 1000000 + now[2], ARGV[1]))
redis.call('SADD', KEYS[2], ARGV[2])
return {redis.call('HGET', KEYS[1], 'epoch')}
