#!lua flags=allow-oom
-- Removes expired retained messages of one shard and remembers them as deletions; forgets old deletions.
-- KEYS: as retain.lua. ARGV: now, the limit, when to forget a deletion made now.
-- Answers the removed messages and the counters.
local m, t, x, d, dx, c = unpack(KEYS)
local call = redis.call
for _, topic in ipairs(call('ZRANGE', dx, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, 1000)) do
  call('ZREM', dx, topic)
  call('HDEL', d, topic)
end
local counters = call('HMGET', c, 'n', 'b')
local count, bytes = tonumber(counters[1] or '0'), tonumber(counters[2] or '0')
local removed = {}
for number, topic in ipairs(call('ZRANGE', x, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
  local held = call('HGET', m, topic)
  removed[number] = held
  count = count - 1
  bytes = bytes - tonumber(string.match(held, '^%x+ (%d+) '))
  call('HDEL', m, topic)
  call('ZREM', t, topic)
  call('ZREM', x, topic)
  call('HSET', d, topic, string.sub(held, 1, 48))
  call('ZADD', dx, ARGV[3], topic)
end
if #removed > 0 then call('HSET', c, 'n', string.format('%.0f', count), 'b', string.format('%.0f', bytes)) end
return {removed, count, string.format('%.0f', bytes)}
