#!lua
-- Stores retained messages of one shard; skips a message if its topic has a newer version.
-- KEYS: m (messages), t (topics in order), x (those that expire), d (deletions), dx (when they are forgotten),
--       c (counters)
-- ARGV: when to forget a deletion made now, and one for a topic without a message; then for each write its topic,
--       version, size, expiry, message ('' deletes), for compare-and-set the version that it must have, or '', and
--       the key of its publisher's session with the highest epoch that it may have, or '' and 0: if it is higher, the
--       write is skipped. That key is in another slot, so it is given on a single server only.
-- Answers the counters, the newest version of the shard, and how many writes were older than their topic's.
-- Versions are 48 hexadecimal digits. They are compared 8 at a time, which a Lua number holds exactly; comparing them
-- as strings would depend on the locale.
local m, t, x, d, dx, c = unpack(KEYS)
local call = redis.call

local function older(one, other)
  for at = 1, 41, 8 do
    local a, b = tonumber(string.sub(one, at, at + 7), 16), tonumber(string.sub(other, at, at + 7), 16)
    if a ~= b then return a < b end
  end
  return false
end

local counters = call('HMGET', c, 'n', 'b', 'v')
local count, bytes = tonumber(counters[1] or '0'), tonumber(counters[2] or '0')
local newest, skipped = counters[3], 0
for at = 3, #ARGV, 8 do
  local topic, version, size, expires, json = ARGV[at], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3], ARGV[at + 4]
  local expected, session, epoch = ARGV[at + 5], ARGV[at + 6], tonumber(ARGV[at + 7])
  local held = call('HGET', m, topic)
  local known = held and string.sub(held, 1, 48) or call('HGET', d, topic)
  if not newest or older(newest, version) then newest = version end
  if session ~= '' and tonumber(call('HGET', session, 'e') or '0') > epoch then
    -- The publisher has gone to another broker, and publishes again there.
  elseif expected ~= '' and expected ~= known then
    -- Its condition fails, which says nothing about the clocks.
  elseif known and older(version, known) then
    skipped = skipped + 1
  else
    if held then
      count = count - 1
      bytes = bytes - tonumber(string.match(held, '^%x+ (%d+) '))
    end
    if json == '' then
      call('HDEL', m, topic)
      call('ZREM', t, topic)
      call('ZREM', x, topic)
      call('HSET', d, topic, version)
      -- For a topic without a message, only writes in flight right now could be older.
      call('ZADD', dx, known and ARGV[1] or ARGV[2], topic)
    else
      call('HSET', m, topic, version .. ' ' .. size .. ' ' .. json)
      call('ZADD', t, 0, topic)
      if expires == '-' then call('ZREM', x, topic) else call('ZADD', x, expires, topic) end
      call('HDEL', d, topic)
      call('ZREM', dx, topic)
      count = count + 1
      bytes = bytes + tonumber(size)
    end
  end
end
call('HSET', c, 'n', string.format('%.0f', count), 'b', string.format('%.0f', bytes), 'v', newest)
return {count, string.format('%.0f', bytes), newest, skipped}
