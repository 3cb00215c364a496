-- Say what the database has; the first one to say it in this epoch is believed by all.
-- KEYS[1]  the product's hash in the first shard
-- ARGV[1]  the epoch under which the database was read
-- ARGV[2]  units
-- Returns {units of this epoch} | {} when the epoch is over
if redis.call('HGET', KEYS[1], 'epoch') ~= ARGV[1] then
  return {}
end
redis.call('HSETNX', KEYS[1], 'total', ARGV[2])
return {tonumber(redis.call('HGET', KEYS[1], 'total'))}
