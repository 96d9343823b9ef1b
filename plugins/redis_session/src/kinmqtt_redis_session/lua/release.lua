#!lua flags=allow-oom
-- Releases the claim on a client id without a stored session. KEYS: s. ARGV: the epoch of the claim.
local head = redis.call('HMGET', KEYS[1], 'e', 'j')
if head[1] == ARGV[1] and not head[2] then
  return redis.call('HDEL', KEYS[1], 'o')
end
return 0
