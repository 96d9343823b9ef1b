"""The figures of a report, as the plots and the templates take them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import Factory, define, frozen

from kinmqtt_metrics.report.files import LeftOut
from kinmqtt_metrics.report.time_axis import Axis, Line

OTHER_NODES: Final = "(other nodes)"
"""Stands for all nodes that have no colour of their own."""

SPREAD: Final = ("queued.count",)
"""Gauges whose percentiles are drawn."""


@define(slots=True, eq=False)
class Spread:
    """How values were spread, step by step."""

    p50: Line
    p95: Line
    p99: Line


@define(slots=True, eq=False)
class GaugeLine:
    """A gauge."""

    mean: Line
    low: float
    high: float
    whole_mean: float


@define(slots=True, eq=False)
class HistogramLine(Spread):
    """A histogram; ``whole`` are the percentiles of everything in the span."""

    whole: tuple[float, float, float]
    observations: int
    total: float
    counts: npt.NDArray[np.int64]
    bounds: tuple[float, ...]


@frozen(slots=True)
class Storm:
    """A window in which too many connected."""

    start_s: float
    node: str
    connects: int
    clients: int
    client: str | None
    most: int


@frozen(slots=True)
class Rejected:
    """Something that could not be read."""

    file: str | None
    line: int | None
    why: str | None
    text: str | None


@define(slots=True, eq=False)
class Lengths:
    """Connections that ended for one reason."""

    connections: int = 0
    sum_s: float = 0.0
    max_s: float = 0.0
    p50_s: float | None = None
    """Of all of them together; nothing where no sketch can be read."""
    p99_s: float | None = None


@define(slots=True, eq=False)
class Facts:
    """Everything that a report tells."""

    axis: Axis
    window_s: int
    samples: int = 1
    """Of a counter in a window, as a rule."""
    nodes: list[str] = Factory(list)
    """As they are drawn: the busiest first, :data:`OTHER_NODES` last."""
    others: list[str] = Factory(list)
    """Whom that stands for."""
    rates: dict[tuple[str, str], Line] = Factory(dict)
    """By node and counter: the sum in each step."""
    totals: dict[tuple[str, str], int] = Factory(dict)
    units: dict[str, str] = Factory(dict)
    rules: dict[tuple[str, str], Line] = Factory(dict)
    """By metric of the limiter and rule."""
    rule_totals: dict[tuple[str, str], int] = Factory(dict)
    gauges: dict[tuple[str, str], GaugeLine] = Factory(dict)
    gauge_spreads: dict[tuple[str, str], Spread] = Factory(dict)
    """Of :data:`SPREAD`."""
    histograms: dict[tuple[str, str], HistogramLine] = Factory(dict)
    histogram_units: dict[str, str] = Factory(dict)
    connects: dict[str, Line] = Factory(dict)
    connect_total: int = 0
    storms: list[Storm] = Factory(list)
    """The worst, in the order of time."""
    storm_windows: int = 0
    storm_lines: dict[str, Line] = Factory(dict)
    """1 where a window of that step was a storm."""
    lengths: dict[str, Lengths] = Factory(dict)
    length_lines: dict[str, Spread] = Factory(dict)
    drops: dict[str, Line] = Factory(dict)
    drop_totals: dict[tuple[str, str], int] = Factory(dict)
    refusals: dict[str, Line] = Factory(dict)
    """By rule or plugin."""
    refusal_totals: dict[tuple[str, str, str, str], int] = Factory(dict)
    """By node, event, rule or plugin, and reason."""
    clients: dict[str, dict[str, tuple[int, int]]] = Factory(dict)
    """By client and node: messages and bytes, while it was among the top."""
    topics: dict[str, dict[str, tuple[int, int]]] = Factory(dict)
    clients_rest: tuple[int, int] = (0, 0)
    topics_rest: tuple[int, int] = (0, 0)
    events: dict[tuple[str, str, str], int] = Factory(dict)
    late: dict[tuple[str, str], int] = Factory(dict)
    rejected: list[Rejected] = Factory(list)
    rejected_rows: int = 0
    rows: dict[str, int] = Factory(dict)
    left_out: list[LeftOut] = Factory(list)
    invalid: dict[str, int] = Factory(dict)
    """Invalid rows that were ignored, by table."""
    unread_sketches: dict[str, int] = Factory(dict)
    """By table: rows whose sketch can't be read; they are in no percentile."""
    missing: list[str] = Factory(list)
    """Sentences about records that were not read."""

    def node_line(self, name: str) -> Line:
        """A counter of all nodes together."""
        return together(line for (_, counter), line in self.rates.items() if counter == name)

    def total(self, name: str) -> int:
        """A counter of all nodes in the whole span."""
        return sum(value for (_, counter), value in self.totals.items() if counter == name)


def together(lines: Iterable[Line]) -> Line:
    """The sum of lines; a step of which no line tells anything stays untold."""
    stack = list(lines)
    if not stack:
        return np.zeros(0)
    array = np.vstack(stack)
    line: Line = np.where(np.isnan(array).all(axis=0), np.nan, np.nansum(array, axis=0))
    return line
