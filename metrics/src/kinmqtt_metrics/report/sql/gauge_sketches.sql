-- Sketches of the gauges whose percentiles are drawn.
SELECT step_of(window_start) AS step, shown(node) AS node, name, coalesce(samples, 0) AS samples, sketch
FROM gauges
WHERE list_contains($names, name)
