-- Ends the owner's hold and gives the lock to the next in the queue.
--   KEYS[1] lock   KEYS[2] counter   KEYS[3] queue   KEYS[4] index
--   ARGV[1] owner  ARGV[2] Redisson's channel of the lock  ARGV[3] an entry to take out of the queue, or ''
-- Returns 1, or 0 when the owner doesn't hold the lock.
local left_queue = ARGV[3] ~= '' and redis.call('LREM', KEYS[3], 0, ARGV[3]) > 0
if not was_held then
    if left_queue then
        local holder = redis.call('HKEYS', KEYS[1])[1]
        if not holder then -- it may have been notified of its turn
            hand_off()
        elseif is_external(holder) then -- it may have been the one of its process that listens
            wake_processes(process_of(ARGV[3]))
        end
    end
    return 0
end
-- If a Redisson client waits, the lock is left free and every waiter in turn
-- is notified; if none takes it, our own first waiter has it before this script ends.
local handed_off = false
if announce(ARGV[2], '0') > 0 then
    wake_processes()
else
    handed_off = hand_off(left)
end
if not handed_off then redis.call('ZREM', KEYS[4], 'L' .. KEYS[1]) end
return 1
