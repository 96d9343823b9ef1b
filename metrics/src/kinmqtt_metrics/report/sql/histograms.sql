-- Histograms: the counts of each step, added up bucket by bucket, separately for different bounds.
WITH
kinds AS (SELECT row_number() OVER () AS kind, bounds FROM (SELECT DISTINCT bounds FROM histograms)),
windows AS (
    SELECT step_of(window_start) AS step, shown(node) AS node, name, kind, unit, counts, "sum" AS total
    FROM histograms JOIN kinds USING (bounds)
),
totals AS (
    SELECT step, node, name, kind, max(unit) AS unit, coalesce(sum(total), 0) AS total FROM windows GROUP BY ALL
),
buckets AS (
    SELECT step, node, name, kind, unnest(counts) AS n, generate_subscripts(counts, 1) AS bucket FROM windows
),
sums AS (
    -- No count of a step is beyond 64 bits.
    SELECT step, node, name, kind, bucket, CAST(least(sum(n), 9223372036854775807) AS BIGINT) AS n
    FROM buckets GROUP BY ALL
),
lists AS (SELECT step, node, name, kind, list(n ORDER BY bucket) AS counts FROM sums GROUP BY ALL)
SELECT step, node, name, kinds.bounds, counts, unit, total
FROM lists JOIN totals USING (step, node, name, kind) JOIN kinds USING (kind)
ORDER BY step, node, name, bounds
