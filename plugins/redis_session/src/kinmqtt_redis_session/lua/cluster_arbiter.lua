#!lua flags=allow-oom
-- Gives a term to the first side that asks for it. KEYS: the arbiter. ARGV: the term, 0 to decide nothing; the side.
-- Answers {1 if the side has the term or 0, the last term that was decided}. The flag lets a full Redis decide, too: it
-- is one small key. A side that has the term is written again, so that WAIT waits for it.
local last = redis.call('HMGET', KEYS[1], 't', 's')
local term, asked = tonumber(last[1] or '0'), tonumber(ARGV[1])
if asked < term or (asked == term and last[2] ~= ARGV[2]) then return {0, term} end
redis.call('HSET', KEYS[1], 't', ARGV[1], 's', ARGV[2])
return {1, asked}
