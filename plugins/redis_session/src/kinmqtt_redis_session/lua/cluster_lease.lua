#!lua flags=allow-oom
-- Takes, renews or releases the cluster's lease. KEYS: the lease. ARGV: the node's uid; how long in ms, 0 to release it.
-- Answers 1 if the node has the lease now. Redis's clock ends it. The flag lets a full Redis decide, too: it is one
-- small key.
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
if ARGV[2] == '0' then
  redis.call('DEL', KEYS[1])
  return 0
end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
