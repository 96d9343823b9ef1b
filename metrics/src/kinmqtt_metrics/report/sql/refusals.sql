-- Refusals by the plugin or the rule that refused.
SELECT step_of(window_start) AS step, shown(node) AS node, name, coalesce(nullif("by", ''), '(not said)') AS "by",
    coalesce(reason, '') AS reason, sum(refusals) AS refusals
FROM refusals
GROUP BY ALL
HAVING sum(refusals) > 0
ORDER BY ALL
