"""Percentiles of histograms."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from kinmqtt_metrics.report.facts import HistogramLine
from kinmqtt_metrics.report.sketches import QUANTILES
from kinmqtt_metrics.report.time_axis import Line


def histogram_line(counts: npt.NDArray[np.int64], bounds: tuple[float, ...], total: float) -> HistogramLine:
    lines = [quantile_of(counts, bounds, q) for q in QUANTILES]
    whole = [float(quantile_of(counts.sum(axis=0, keepdims=True), bounds, q)[0]) for q in QUANTILES]
    return HistogramLine(
        lines[0], lines[1], lines[2], (whole[0], whole[1], whole[2]), int(counts.sum()), total, counts, bounds
    )


def quantile_of(counts: npt.NDArray[np.int64], bounds: Sequence[float], q: float) -> Line:
    """A quantile of each row of counts, interpolated within its bucket; NaN where a row counted nothing.

    The last bucket has no upper bound: what lies in it is told as its lower bound.
    """
    whole = counts.sum(axis=1)
    found = np.full(len(counts), np.nan)
    if not bounds:
        return found
    upto = counts.cumsum(axis=1)
    for row in np.flatnonzero(whole):
        wanted = q * whole[row]
        bucket = int(np.searchsorted(upto[row], wanted, side="left"))
        while counts[row, bucket] == 0:
            bucket += 1
        if bucket >= len(bounds):
            found[row] = bounds[-1]
            continue
        low = bounds[bucket - 1] if bucket else min(0.0, bounds[0])
        before = upto[row, bucket - 1] if bucket else 0
        found[row] = low + (bounds[bucket] - low) * max(0.0, wanted - before) / counts[row, bucket]
    return found
