-- Some windows that have samples: they may come more seldom than windows.
SELECT DISTINCT window_start FROM rates ORDER BY window_start LIMIT 500
