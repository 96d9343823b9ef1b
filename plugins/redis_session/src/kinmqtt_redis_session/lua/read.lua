-- Reads queued entries after a sequence number, in order. KEYS: q, d. ARGV: the sequence number, the limit.
local found = {}
local sequences = redis.call('ZRANGE', KEYS[1], '(' .. ARGV[1], '+inf', 'BYSCORE', 'LIMIT', 0, ARGV[2])
for number, sequence in ipairs(sequences) do
  found[number] = redis.call('HGET', KEYS[2], sequence)
end
return found
