-- Gives a stored session that a node left behind a new home, unless somebody has claimed it since. KEYS: s.
-- ARGV: the uid of who is gone, and of the new home. Answers whether it has its home there, and waits to be claimed.
-- A claim of who is gone is not undone any more: it would have its home there again.
local head = redis.call('HMGET', KEYS[1], 'u', 'j', 'h')
if not head[2] then return 0 end
local home = head[1] or '0'
if home == ARGV[2] then return head[3] == ARGV[2] and 1 or 0 end
if home ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'u', ARGV[2], 'h', ARGV[2])
redis.call('HDEL', KEYS[1], 'k', 'ke', 'ko', 'ku', 'kh', 'kcu')
return 1
