-- Ranges of consecutive record numbers of one file of raw, by node and boot.
WITH
numbers AS (
    SELECT DISTINCT coalesce(node, '(no name)') AS node, boot, seq
    FROM read_parquet($file, hive_partitioning = false)
    WHERE boot IS NOT NULL AND seq >= 1
),
islands AS (
    -- Of consecutive numbers the difference to their rank is the same.
    SELECT *, seq - row_number() OVER (PARTITION BY node, boot ORDER BY seq) AS island FROM numbers
)
SELECT node, boot, min(seq) AS first, max(seq) AS last
FROM islands
GROUP BY node, boot, island
ORDER BY node, boot, first
