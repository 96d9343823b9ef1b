-- Reads one client's counters, the first expiry in its queue, and the uid of its home. KEYS: s, q, i, r, x.
local head = redis.call('HMGET', KEYS[1], 'j', 'b', 'u')
local first = redis.call('ZRANGE', KEYS[5], 0, 0, 'WITHSCORES')
return {head[1] and 1 or 0, redis.call('ZCARD', KEYS[2]), head[2] or '0', redis.call('ZCARD', KEYS[3]),
  redis.call('SCARD', KEYS[4]), first[2] or '', head[3] or '0'}
