#!lua flags=allow-oom
-- Forgets a node that is gone and home of no session, unless it is back and has a lease.
-- KEYS: the nodes, its lease. ARGV: its uid.
if redis.call('EXISTS', KEYS[2]) == 1 then return 0 end
return redis.call('HDEL', KEYS[1], ARGV[1])
