-- Gauges: the samples of each step. The nodes that are shown together have no common gauge.
SELECT
    step_of(window_start) AS step,
    node,
    name,
    sum(mean * samples) AS total,
    sum(samples) AS samples,
    min("min") AS low,
    max("max") AS high
FROM gauges
WHERE list_contains($names, name) AND shown(node) = node
GROUP BY ALL
HAVING sum(samples) > 0 AND total IS NOT NULL AND low IS NOT NULL AND high IS NOT NULL
ORDER BY ALL
