-- Sketches of how long connections lasted.
SELECT step_of(window_start) AS step, shown(node) AS node, coalesce(reason, '') AS reason, connections, sketch
FROM connections
WHERE connections > 0
