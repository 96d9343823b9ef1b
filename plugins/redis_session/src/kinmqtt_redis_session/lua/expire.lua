#!lua flags=allow-oom
-- Removes expired entries from one client's queue. KEYS: s, q, d, i, r, x. ARGV: now, the limit, this node's uid.
-- Leaves the queues of other nodes' clients alone, because their owners count the entries.
local s, q, d, i, r, x = unpack(KEYS)
local call = redis.call
local removed = {}
local head = call('HMGET', s, 'b', 'u')
local bytes = tonumber(head[1] or '0')
if not head[2] or head[2] == ARGV[3] then
  for number, sequence in ipairs(call('ZRANGE', x, '-inf', ARGV[1], 'BYSCORE', 'LIMIT', 0, ARGV[2])) do
    local blob = call('HGET', d, sequence)
    removed[number] = blob
    bytes = bytes - tonumber(string.match(blob, '^(%d+) '))
    call('ZREM', q, sequence)
    call('ZREM', x, sequence)
    call('HDEL', d, sequence)
  end
  if #removed > 0 then call('HSET', s, 'b', string.format('%.0f', bytes)) end
end
local first = call('ZRANGE', x, 0, 0, 'WITHSCORES')
return {removed, first[2] or '', call('HEXISTS', s, 'j'), call('ZCARD', q), string.format('%.0f', bytes),
  call('ZCARD', i), call('SCARD', r)}
