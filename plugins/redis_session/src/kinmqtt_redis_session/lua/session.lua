-- Reads one session and the uid of its home. KEYS: s, f.
return {redis.call('HMGET', KEYS[1], 'e', 'o', 'c', 'j', 'w', 'xe', 'wd', 'a'), redis.call('HGETALL', KEYS[2]),
  redis.call('HGET', KEYS[1], 'u') or '0'}
