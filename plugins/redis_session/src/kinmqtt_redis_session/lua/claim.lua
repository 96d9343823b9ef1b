#!lua
-- Makes a node the owner of a client id, one epoch up. KEYS: s, f, q, i, r. ARGV: the node, its uid, ms as in
-- client.lua, what names this claim, so that it can be undone where its answer was lost; and, where only that is to be
-- claimed which was left behind to this node (hand.lua), its uid once more: nothing is answered where somebody has
-- claimed it since.
-- An epoch is Redis's clock in ms, or one more than the one before where that is more: it is above all that an id can
-- have had of which nothing is remembered, and above a claim that a failover has lost, which would be made once more.
local head = redis.call('HMGET', KEYS[1], 'e', 'o', 'j', 'u', 'h')
if ARGV[5] ~= '' and head[5] ~= ARGV[5] then return false end
local now = redis.call('TIME')
local epoch = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
if head[1] then epoch = math.max(epoch, tonumber(head[1]) + 1) end
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'e', epoch, 'o', ARGV[1], 'u', ARGV[2], 'k', ARGV[4], 'ke', head[1] or '',
  'ko', head[2] or '', 'ku', head[4] or '',
  'kh', head[5] or '')
if head[5] then redis.call('HDEL', KEYS[1], 'h') end
if not head[3] and redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {epoch, head[1] or '0', head[2] or '',
  redis.call('HMGET', KEYS[1], 'e', 'o', 'c', 'j', 'w', 'xe', 'wd'),
  redis.call('HGETALL', KEYS[2])}
