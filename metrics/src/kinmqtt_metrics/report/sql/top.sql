-- The names with the most bytes, by node, from place 1; all others in one row with place 0.
WITH
sums AS (
    SELECT name, shown(node) AS node, sum(coalesce(messages, 0)) AS messages, sum(coalesce(bytes, 0)) AS bytes
    FROM tops WHERE kind = $kind AND rank > 0
    GROUP BY ALL
),
places AS (
    SELECT name, row_number() OVER (ORDER BY sum(bytes) DESC, sum(messages) DESC, name NULLS LAST) AS place
    FROM sums GROUP BY name
),
named AS (
    SELECT place, sums.* FROM sums JOIN places ON sums.name IS NOT DISTINCT FROM places.name
)
SELECT * FROM named WHERE place <= $most
UNION ALL
SELECT 0, NULL, NULL, coalesce(sum(messages), 0), coalesce(sum(bytes), 0)
FROM (
    SELECT messages, bytes FROM named WHERE place > $most
    UNION ALL
    SELECT messages, bytes FROM tops WHERE kind = $kind AND rank <= 0
)
ORDER BY place, node
