-- How often each event happened.
SELECT shown(node) AS node, name, coalesce(reason, '') AS reason, coalesce(sum(events), 0) AS events
FROM events
GROUP BY ALL
ORDER BY ALL
