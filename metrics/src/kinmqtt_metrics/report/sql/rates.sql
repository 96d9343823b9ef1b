-- Counters: the sum of each step. The limiter's counters are split by rule.
SELECT
    step_of(window_start) AS step,
    shown(node) AS node,
    name,
    CASE WHEN list_contains($rules, name) THEN coalesce(map_extract(labels, 'rule')[1], '(no name)') END AS rule,
    max(unit) AS unit,
    coalesce(sum(delta), 0) AS delta
FROM rates
GROUP BY ALL
ORDER BY ALL
