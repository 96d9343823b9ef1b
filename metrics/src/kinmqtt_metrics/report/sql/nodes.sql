-- All nodes, and their traffic in messages. The busiest nodes get a colour of their own.
WITH known AS (
    SELECT node FROM rates
    UNION SELECT node FROM gauges
    UNION SELECT node FROM histograms
    UNION SELECT node FROM events
    UNION SELECT node FROM connections
    UNION SELECT node FROM reconnects
    UNION SELECT node FROM top_clients
    UNION SELECT node FROM top_topics
    UNION SELECT node FROM drops
    UNION SELECT node FROM refusals
)
SELECT known.node, coalesce(sum(rates.delta), 0) AS messages
FROM known
LEFT JOIN rates ON rates.node = known.node AND rates.name IN ('messages.received', 'messages.sent')
GROUP BY known.node
ORDER BY known.node
