-- List the entries of a ledger that are old enough to be somebody's who died.
-- KEYS[1]  the ledger of this shard
-- ARGV[1]  seconds
-- Returns {sale, entry, sale, entry…}
local found, now = {}, tonumber(redis.call('TIME')[1])
local all = redis.call('HGETALL', KEYS[1])
for i = 1, #all, 2 do
  if now - cjson.decode(all[i + 1]).at >= tonumber(ARGV[1]) then
    found[#found + 1], found[#found + 2] = all[i], all[i + 1]
  end
end
return found
