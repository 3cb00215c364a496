-- Delete a lock if it is still the caller's.
-- KEYS[1]  the lock
-- ARGV[1]  the token that the caller put into it
-- Returns {1} when it was deleted, {0} when it had ended or belongs to another
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return {redis.call('DEL', KEYS[1])}
end
return {0}
