-- How long connections lasted, by the reason of their end. Of two reasons with as many connections the one that
-- comes first in the table comes first.
SELECT coalesce(reason, '') AS reason, sum(connections) AS connections, coalesce(sum(sum_s), 0) AS sum_s,
    coalesce(max(max_s), 0) AS max_s
FROM (SELECT *, row_number() OVER () AS place FROM connections)
GROUP BY ALL
HAVING sum(connections) > 0
ORDER BY connections DESC, min(place)
