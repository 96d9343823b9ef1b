-- What is stored of one session. KEYS: s, f.
return {redis.call('HMGET', KEYS[1], 'e', 'o', 'c', 'j', 'w', 'xe', 'wd'), redis.call('HGETALL', KEYS[2])}
