#!lua flags=allow-oom
-- Notes where the members of the cluster are, in a sorted set by the time at which each note ends. KEYS: the members.
-- ARGV: an address, or nothing to note none; the milliseconds that its note lasts, 0 to remove it; "1" to note it only if
-- no other one is noted. Answers {1 if the address is noted or 0, the addresses that are noted}. The flag lets a full
-- Redis note members, too: they are few.
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local address, lasts = ARGV[1], tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now)
if address ~= '' and lasts == 0 then redis.call('ZREM', KEYS[1], address) end
local noted = 0
if lasts > 0 then
    local others = redis.call('ZCARD', KEYS[1])
    if redis.call('ZSCORE', KEYS[1], address) then others = others - 1 end
    if ARGV[3] ~= '1' or others == 0 then
        redis.call('ZADD', KEYS[1], now + lasts, address)
        noted = 1
    end
end
return {noted, redis.call('ZRANGE', KEYS[1], 0, -1)}
