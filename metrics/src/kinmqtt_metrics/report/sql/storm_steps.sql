-- The steps that have reconnect storms, and how many windows of them were storms.
SELECT step_of(window_start) AS step, shown(node) AS node, count(*) AS windows
FROM reconnects
WHERE storm
GROUP BY ALL
ORDER BY ALL
