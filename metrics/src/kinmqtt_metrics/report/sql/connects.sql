-- How many clients connected in each step.
SELECT step_of(window_start) AS step, shown(node) AS node, coalesce(sum(connects), 0) AS connects
FROM reconnects
GROUP BY ALL
ORDER BY ALL
