-- The worst reconnect storms.
SELECT window_start, node, coalesce(connects, 0) AS connects, coalesce(clients, 0) AS clients, client,
    coalesce(most, 0) AS most
FROM reconnects
WHERE storm
ORDER BY connects DESC, window_start, node
LIMIT $most
