-- The length of a window in seconds, and how many samples of a counter a window usually has.
SELECT
    coalesce(
        (SELECT max(window_s) FROM rates),
        (SELECT max(window_s) FROM gauges),
        (SELECT max(window_s) FROM histograms),
        (SELECT max(window_s) FROM events),
        (SELECT max(window_s) FROM usual),
        (SELECT max(window_s) FROM drops),
        (SELECT max(window_s) FROM reconnects),
        (SELECT max(window_s) FROM connections),
        1
    ) AS window_s,
    coalesce((SELECT quantile_disc(samples, 0.5) FROM rates), 1) AS samples
