-- Tells which messages a client's queue has or had. KEYS: d (entries), k (ids of QoS 2 messages, by the time until which
-- they stay known). ARGV: message ids as `node,counter`. Answers the known ones.
local ID = '"id":{"node":'
local known, wanted = {}, {}
local now = tonumber(redis.call('TIME')[1])
for _, id in ipairs(ARGV) do
  local score = redis.call('ZSCORE', KEYS[2], id)
  if score and tonumber(score) > now then known[#known + 1] = id else wanted[id] = true end
end
if next(wanted) then
  for _, blob in ipairs(redis.call('HVALS', KEYS[1])) do
    -- As in client.lua.
    local found = string.find(blob, ID, 1, true)
    local node, counter
    if found then node, counter = string.match(blob, '^(%d+),"counter":(%d+)', found + #ID) end
    local id = node and node .. ',' .. counter
    if id and wanted[id] then
      known[#known + 1] = id
      wanted[id] = nil
    end
  end
end
return known
