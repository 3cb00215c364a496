-- Adds to the figures of a minute, which are forgotten after two hours.
--   KEYS[1] the minute's hash
--   ARGV[2i-1] field   ARGV[2i] what to add
for i = 1, #ARGV, 2 do redis.call('HINCRBY', KEYS[1], ARGV[i], ARGV[i + 1]) end
return redis.call('EXPIRE', KEYS[1], 7200)
