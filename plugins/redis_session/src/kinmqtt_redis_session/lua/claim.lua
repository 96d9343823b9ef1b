#!lua
-- Makes a node the owner of a client id under a new, higher epoch.
-- KEYS: s, f, q, i, r; 6 the key that exists if the node was declared dead, where it is in reach of this script
-- ARGV: 1 the node; 2 its uid; 3 how long to remember a client without stored state, in ms; 4 the claim's token, with
--       which undo_claim.lua can undo it; 5 the node's uid again for an adoption, else '': the claim then succeeds
--       only if hand_over.lua gave the session to this node and no one has claimed it since; 6 the user as JSON: the
--       verified name and the name in CONNECT, or ''; 7 the uid of a node that is known to have released its claim,
--       or ''; 8 an epoch that the new one must be above
-- Answers {epoch, previous epoch, previous owner, session fields, subscriptions, uid of the node that claimed last}.
-- Answers false if an adoption comes too late. Answers {'others', holder's uid or ''} without any effect if the client id belongs to another user: the
-- user of the stored session, else the user for whom it was claimed and not released. Answers {'buried'} without any
-- effect if the node was declared dead. The epoch is Redis's clock in
-- ms, or the previous epoch plus one if that is higher. So it is above any forgotten epoch of this client id, and
-- above the epoch of a claim that a failover has lost.
if KEYS[6] and redis.call('EXISTS', KEYS[6]) == 1 then return {'buried'} end
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
epoch = math.max(epoch, tonumber(ARGV[8]) + 1)
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
  redis.call('HGETALL', KEYS[2]), head[4] or ''}
