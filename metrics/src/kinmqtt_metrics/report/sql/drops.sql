-- Messages that did not reach a client.
SELECT step_of(window_start) AS step, shown(node) AS node, coalesce(reason, '') AS reason, sum(messages) AS messages
FROM drops
GROUP BY ALL
HAVING sum(messages) > 0
ORDER BY ALL
