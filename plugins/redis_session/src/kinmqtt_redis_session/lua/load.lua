-- Reads what a new owner needs to know of a queue. KEYS: s, q, d, i, p, r.
local head = redis.call('HMGET', KEYS[1], 'l', 'b')
local flying = {}
for number, sequence in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
  flying[number] = {sequence, redis.call('HGET', KEYS[5], sequence), redis.call('HGET', KEYS[3], sequence) or ''}
end
local inbound, pending = {}, {}
for _, packet_id in ipairs(redis.call('SMEMBERS', KEYS[6])) do
  local message = redis.call('HGET', KEYS[1], 'p:' .. packet_id)
  if message then pending[#pending + 1] = {packet_id, message} else inbound[#inbound + 1] = packet_id end
end
return {head[1] or '0', head[2] or '0', redis.call('ZCARD', KEYS[2]), flying, inbound, pending}
