#!lua
-- Carries out the writes for one client, in order. Each has an epoch; a write with a lower epoch than the client's is
-- refused.
-- KEYS: s (session and counters), f (subscriptions), q (queued), d (entries), i (in flight, by order of sending),
--       p (packet ids in flight), r (inbound packet ids), x (queued entries that expire), k (ids of QoS 2 messages
--       whose PUBREC was received, by the time until which they stay known)
-- A pending inbound packet id has its message id in the session's hash, as `p:` and the packet id.
-- ARGV: how long to remember a client without stored state, in ms; then the writes, in runs of the same kind: the
--       kind, the epoch, the number of writes, and the arguments of each. A run of `inbound open` may be preceded by
--       `expect`, an unused epoch, a number, and that many session keys, each with its highest allowed epoch: if one
--       is higher, the run has no effect. These keys are in other slots, so `expect` works on a single server only.
-- Answers: the numbers of the refused writes, whether a session is stored, and the sizes of the queue.
local s, f, q, d, i, p, r, x, k = unpack(KEYS)
local call = redis.call
local at = 1
local function take()
  at = at + 1
  return ARGV[at]
end

local head = call('HMGET', s, 'e', 'l', 'f', 'b', 't', 'n')
local epoch = tonumber(head[1] or '0')
local last, floor = tonumber(head[2] or '0'), tonumber(head[3] or '0')
local last_text, floor_text = head[2], head[3]
local bytes, order, place = tonumber(head[4] or '0'), tonumber(head[5] or '0'), tonumber(head[6] or '0')
local stored = call('HEXISTS', s, 'j') == 1

local function weigh(blob)
  local size, expires = string.match(blob, '^(%d+) (%S*) ')
  return tonumber(size), expires
end

-- Whether a target session of the message has a newer owner: then its packet identifier must not be stored.
local held_back = false
local function expect(count)
  held_back = false
  for _ = 1, count do
    local key, its = take(), take()
    if tonumber(call('HGET', key, 'e') or '0') > tonumber(its) then held_back = true end
  end
end

local function unqueue(sequence)
  if call('ZREM', q, sequence) == 0 then return false end
  local blob = call('HGET', d, sequence)
  local size, expires = weigh(blob)
  bytes = bytes - size
  if expires ~= '-' then call('ZREM', x, sequence) end
  return true
end

local function enqueue(sequence, size, expires)
  call('ZADD', q, sequence, sequence)
  bytes = bytes + size
  if expires ~= '-' then call('ZADD', x, expires, sequence) end
end

local function fly(sequence, packet_id)
  order = order + 1
  call('ZADD', i, order, sequence)
  call('HSET', p, sequence, packet_id)
end

local function set_or_forget(field, value)
  if value == '' then call('HDEL', s, field) else call('HSET', s, field, value) end
end

local function subscribe(filter, blob)
  local known = call('HGET', f, filter)
  local number
  if known then
    number = string.sub(known, 1, 12)
  else
    place = place + 1
    number = string.format('%012d', place)
  end
  call('HSET', f, filter, number .. blob)
end

-- How long a QoS 2 message stays known after its PUBREC: longer than the exchange takes, and a minute. Of those that are
-- older than that minute fewer do, as nobody knows how long the exchange of one takes.
local KNOWN_S = 3600
local RECENT_S = 60
local KNOWN_MESSAGES = 20000
local OLDER_MESSAGES = 1000
local ID = '"id":{"node":'

-- Remembers the message of a released entry. A payload can be long, so the id is searched for as plain text first;
-- within a JSON string each of its quotation marks would have a backslash before it.
local remembered, now = 0, nil
local function remember(blob)
  local found = string.find(blob, ID, 1, true)
  if not found then return end
  local node, counter = string.match(blob, '^(%d+),"counter":(%d+)', found + #ID)
  if not now then
    local time = call('TIME')
    now = tonumber(time[1]) + tonumber(time[2]) / 1000000
  end
  call('ZADD', k, string.format('%.6f', now + KNOWN_S + remembered / 1000000), node .. ',' .. counter)
  remembered = remembered + 1
end

local does = {}

function does.open(good)
  local fixed, changing, verified, will = take(), take(), take(), take()
  local expires, due, count = take(), take(), tonumber(take())
  if good then
    stored = true
    place = 0
    call('HSET', s, 'c', fixed, 'j', changing)
    set_or_forget('a', verified)
    set_or_forget('w', will)
    set_or_forget('xe', expires)
    set_or_forget('wd', due)
    call('DEL', f)
  end
  for _ = 1, count do
    local filter, blob = take(), take()
    if good then subscribe(filter, blob) end
  end
end

function does.resume(good)
  local changing, verified, will = take(), take(), take()
  if good and stored then
    call('HSET', s, 'j', changing)
    set_or_forget('a', verified)
    set_or_forget('w', will)
    call('HDEL', s, 'xe', 'wd')
  end
end

function does.subscribe(good)
  for _ = 1, tonumber(take()) do
    local filter, blob = take(), take()
    if good and stored then subscribe(filter, blob) end
  end
end

function does.unsubscribe(good)
  for _ = 1, tonumber(take()) do
    local filter = take()
    if good then call('HDEL', f, filter) end
  end
end

does['clear will'] = function(good)
  if good then call('HDEL', s, 'w', 'wd') end
end

does['release session'] = function(good)
  local expires, due = take(), take()
  if good then
    call('HDEL', s, 'o')
    if stored then
      set_or_forget('xe', expires)
      set_or_forget('wd', due)
    end
  end
end

function does.discard(good)
  if good then
    stored = false
    call('HDEL', s, 'o', 'c', 'j', 'a', 'w', 'xe', 'wd')
    call('DEL', f)
  end
end

function does.send(good)
  local sequence, packet_id = take(), take()
  if good and unqueue(sequence) then fly(sequence, packet_id) end
end

function does.release(good)
  local sequence = take()
  if not good or call('HEXISTS', p, sequence) == 0 then return end
  local blob = call('HGET', d, sequence)
  if not blob then return end
  remember(blob)
  call('HDEL', d, sequence)
end

function does.requeue(good)
  if not good then return end
  for _, sequence in ipairs(call('ZRANGE', i, 0, -1)) do
    local blob = call('HGET', d, sequence)
    if blob then
      call('ZREM', i, sequence)
      call('HDEL', p, sequence)
      enqueue(sequence, weigh(blob))
    end
  end
end

does['inbound open'] = function(good)
  local packet_id, message = take(), take()
  if not good or held_back then return end
  call('SADD', r, packet_id)
  set_or_forget('p:' .. packet_id, message)
end

does['inbound close'] = function(good)
  local packet_id = take()
  if good then
    call('SREM', r, packet_id)
    call('HDEL', s, 'p:' .. packet_id)
  end
end

function does.purge(good)
  if good then
    for _, packet_id in ipairs(call('SMEMBERS', r)) do call('HDEL', s, 'p:' .. packet_id) end
    call('DEL', q, d, i, p, r, x, k)
    floor, floor_text, bytes = 0, '0', 0
  end
end

-- Kinds whose whole run takes one call of each command.
local runs = {}

function runs.append(good, count)
  local entries, waiting, order_of, ids, e, w, n = {}, {}, {}, {}, 0, 0, 0
  for _ = 1, count do
    local sequence, packet_id, blob = take(), take(), take()
    local number = tonumber(sequence)
    if good and number > floor then
      floor, floor_text = number, sequence
      if number > last then last, last_text = number, sequence end
      entries[e + 1], entries[e + 2] = sequence, blob
      e = e + 2
      if packet_id == '' then
        local size, expires = weigh(blob)
        bytes = bytes + size
        waiting[w + 1], waiting[w + 2] = sequence, sequence
        w = w + 2
        if expires ~= '-' then call('ZADD', x, expires, sequence) end
      else
        order = order + 1
        order_of[n + 1], order_of[n + 2] = order, sequence
        ids[n + 1], ids[n + 2] = sequence, packet_id
        n = n + 2
      end
    end
  end
  if e > 0 then call('HSET', d, unpack(entries)) end
  if w > 0 then call('ZADD', q, unpack(waiting)) end
  if n > 0 then
    call('ZADD', i, unpack(order_of))
    call('HSET', p, unpack(ids))
  end
end

function runs.remove(good, count)
  local sequences = {}
  for each = 1, count do sequences[each] = take() end
  if not good then return end
  if call('HDEL', p, unpack(sequences)) < count then
    -- The others are queued or do not exist; an inflight entry is never queued.
    for _, sequence in ipairs(sequences) do unqueue(sequence) end
  end
  call('ZREM', i, unpack(sequences))
  call('HDEL', d, unpack(sequences))
end

local refused, number, total = {}, 0, #ARGV
while at < total do
  local kind, its, count = take(), take(), tonumber(take())
  if kind == 'expect' then
    expect(count)
    kind, its, count = take(), take(), tonumber(take())
  end
  local height = tonumber(its)
  local good = height >= epoch
  if not good then
    for each = number, number + count - 1 do refused[#refused + 1] = each end
  elseif height > epoch then
    epoch = height
    call('HSET', s, 'e', its)
  end
  if runs[kind] then
    runs[kind](good, count)
  else
    for _ = 1, count do does[kind](good) end
  end
  number = number + count
end

if remembered > 0 then
  call('ZREMRANGEBYSCORE', k, '-inf', now)
  local count = call('ZCARD', k)
  local excess = count - KNOWN_MESSAGES
  if count > OLDER_MESSAGES then
    local older = call('ZCOUNT', k, '-inf', now + KNOWN_S - RECENT_S)
    excess = math.max(excess, math.min(older, count - OLDER_MESSAGES))
  end
  if excess > 0 then call('ZREMRANGEBYRANK', k, 0, excess - 1) end
  call('EXPIRE', k, KNOWN_S)
end
if head[1] or epoch > 0 then
  call('HSET', s, 'l', last_text or '0', 'f', floor_text or '0', 'b', string.format('%.0f', bytes),
    't', string.format('%.0f', order), 'n', string.format('%.0f', place))
end
local queued, flying, inbound = call('ZCARD', q), call('ZCARD', i), call('SCARD', r)
if stored or queued + flying + inbound > 0 then
  call('PERSIST', s)
else
  call('PEXPIRE', s, ARGV[1])
end
return {refused, stored and 1 or 0, queued, string.format('%.0f', bytes), flying, inbound}
