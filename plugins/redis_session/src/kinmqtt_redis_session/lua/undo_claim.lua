-- Undoes a claim whose answer was lost: no one knows its epoch, so the previous owner must be able to continue.
-- KEYS: s. ARGV: the claim's token.
local s = KEYS[1]
local head = redis.call('HMGET', s, 'k', 'ke', 'ko', 'ku', 'kh', 'kcu')
if head[1] ~= ARGV[1] then return 0 end
for field, value in pairs({e = head[2], o = head[3], u = head[4], h = head[5] or '', cu = head[6] or ''}) do
  if value == '' then redis.call('HDEL', s, field) else redis.call('HSET', s, field, value) end
end
redis.call('HDEL', s, 'k', 'ke', 'ko', 'ku', 'kh', 'kcu')
return 1
