-- Gives an orphaned session a new home, unless it was claimed meanwhile. KEYS: s.
-- ARGV: the uid of the node that is gone, and the uid of the new home.
-- Answers 1 if the session has the new home and waits to be claimed there, else 0.
-- The old node's last claim can no longer be undone: undoing it would restore the old home.
local head = redis.call('HMGET', KEYS[1], 'u', 'j', 'h')
if not head[2] then return 0 end
local home = head[1] or '0'
if home == ARGV[2] then return head[3] == ARGV[2] and 1 or 0 end
if home ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'u', ARGV[2], 'h', ARGV[2])
redis.call('HDEL', KEYS[1], 'k', 'ke', 'ko', 'ku', 'kh', 'kcu')
return 1
