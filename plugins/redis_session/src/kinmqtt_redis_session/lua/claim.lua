#!lua
-- Makes a node the owner of a client id, one epoch up. KEYS: s, f, q, i, r. ARGV: the node, its uid, ms as in
-- client.lua, what names this claim, so that it can be undone where its answer was lost; and, where only that is to be
-- claimed which was left behind to this node (hand.lua), its uid once more: nothing is answered where somebody has
-- claimed it since; for whom it is claimed, as JSON, two names of the user: that which was verified, and that which
-- CONNECT gave; and the uid of a node of which it is known that it does not hold what it has claimed any more.
-- Where the client id is another user's nothing is done: it is the user's of whom a session is stored, else the user's
-- for whom it was claimed and not released since. Answers then 'others', and the uid of who holds it without a session.
-- An epoch is Redis's clock in ms, or one more than the one before where that is more: it is above all that an id can
-- have had of which nothing is remembered, and above a claim that a failover has lost, which would be made once more.
local head = redis.call('HMGET', KEYS[1], 'e', 'o', 'j', 'u', 'h', 'a', 'cu')
if ARGV[5] ~= '' and head[5] ~= ARGV[5] then return false end
local user = ''
if ARGV[6] ~= '' then
  local names = cjson.decode(ARGV[6])
  user = cjson.encode({names[1]})
  if head[3] then
    local stored = cjson.decode(head[3])[2]
    local verified = head[6] and cjson.decode(head[6])[1] == stored
    local name = names[1]
    if name == cjson.null and not verified then name = names[2] end
    if name ~= stored then return {'others', ''} end
  elseif head[2] and head[7] and cjson.decode(head[7])[1] ~= names[1] and head[4] ~= ARGV[7] then
    return {'others', head[4] or ''}
  end
end
local now = redis.call('TIME')
local epoch = tonumber(now[1]) * 1000 + math.floor(tonumber(now[2]) / 1000)
if head[1] then epoch = math.max(epoch, tonumber(head[1]) + 1) end
epoch = string.format('%.0f', epoch)
redis.call('HSET', KEYS[1], 'e', epoch, 'o', ARGV[1], 'u', ARGV[2], 'k', ARGV[4], 'ke', head[1] or '',
  'ko', head[2] or '', 'ku', head[4] or '',
  'kh', head[5] or '', 'kcu', head[7] or '')
if head[5] then redis.call('HDEL', KEYS[1], 'h') end
if user == '' then redis.call('HDEL', KEYS[1], 'cu') else redis.call('HSET', KEYS[1], 'cu', user) end
if not head[3] and redis.call('EXISTS', KEYS[3], KEYS[4], KEYS[5]) == 0 then
  redis.call('PEXPIRE', KEYS[1], ARGV[3])
end
return {epoch, head[1] or '0', head[2] or '',
  redis.call('HMGET', KEYS[1], 'e', 'o', 'c', 'j', 'w', 'xe', 'wd', 'a'),
  redis.call('HGETALL', KEYS[2])}
