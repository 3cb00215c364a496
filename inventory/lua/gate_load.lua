-- Put a shard's share of the stock in, once an epoch.
-- KEYS[1]  the product's hash in this shard
-- ARGV[1]  epoch
-- ARGV[2]  units
-- ARGV[3]  1 in the first shard, where the epoch began: a stock that is gone there was dropped meanwhile
-- Returns {1} when they were put in, {0} when they were there or the epoch is over
local has = redis.call('HMGET', KEYS[1], 'epoch', 'units')
if ARGV[3] == '1' and has[1] ~= ARGV[1] then
  return {0}
end
if has[1] and (has[1] > ARGV[1] or (has[1] == ARGV[1] and has[2])) then
  return {0}
end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'units', ARGV[2])
return {1}
