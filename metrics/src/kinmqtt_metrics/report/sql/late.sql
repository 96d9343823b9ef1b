-- Records that came too late. The table does not say for which window.
SELECT node, coalesce(kind, '') AS kind, coalesce(sum(records), 0) AS records
FROM late
GROUP BY ALL
ORDER BY ALL
