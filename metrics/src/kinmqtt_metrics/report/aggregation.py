"""What the tables say, summed up for a report: sums are exact, and memory is bounded by steps, nodes and names."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from attrs import Factory, define, field, frozen

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report.gaps import missing
from kinmqtt_metrics.report.reading import LeftOut, Reader, Span, summed
from kinmqtt_metrics.report.sketches import QUANTILES, Sketches

Line: TypeAlias = npt.NDArray[np.float64]
"""A value for each step; NaN where nothing was told."""

MOST_STEPS: Final = 300
"""More than that a plot of this width does not show."""
MOST_NODES: Final = 8
"""Nodes with a colour of their own; beyond, the ones with the least traffic are told together."""
OTHER_NODES: Final = "(other nodes)"
MOST_NAMES: Final = 200_000
"""Clients or topics that are added up; beyond, the lightest are forgotten now and then."""
_MOST_STORMS: Final = 12
_MOST_REJECTED: Final = 8

GAUGES: Final = (
    "clients.connected",
    "clients.total",
    "connections.open",
    "sessions.stored",
    "subscriptions.count",
    "retained.count",
    "queued.count",
    "inflight.count",
    "overload.level",
)
"""Those that are drawn or stand in the report's table."""

SPREAD: Final = ("queued.count",)
"""Gauges whose percentiles are drawn: their sketches are merged."""

_RULES: Final = ("limiter.shadow_blocked", "limiter.blocked", "limiter.delayed")

_NICE_S: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@frozen(slots=True, eq=False)
class Axis:
    """The time, in steps of equal length."""

    span: Span
    step_s: float
    first_s: float
    """Where the first step begins: at or before the span."""
    steps: int

    @classmethod
    def of(cls, span: Span, least_s: float, most_steps: int = MOST_STEPS) -> Axis:
        """Commits that are a multiple of ``least_s``, and round where that goes."""
        wanted = max(least_s, span.length_s / most_steps)
        nice = next((s for s in _NICE_S if s >= wanted and s % least_s == 0), 0)
        step_s = float(nice or least_s * -(-wanted // least_s))
        first_s = span.start_s // step_s * step_s
        return cls(span, step_s, first_s, max(1, int(-((first_s - span.end_s) // step_s))))

    def step(self, window_start: Any) -> Any:
        """The number of the step in which each of these windows (microseconds) begins."""
        return pc.floor(
            pc.divide(pc.subtract(pc.divide(window_start.cast(pa.float64()), 1e6), self.first_s), self.step_s)
        ).cast(pa.int64())

    @property
    def begins_s(self) -> Line:
        """When each step begins."""
        line: Line = self.first_s + self.step_s * np.arange(self.steps, dtype=np.float64)
        return line

    @property
    def middles_s(self) -> Line:
        """The middle of the part of each step that is in the span."""
        low = np.maximum(self.begins_s, self.span.start_s)
        high = np.minimum(self.begins_s + self.step_s, self.span.end_s)
        line: Line = (low + high) / 2
        return line

    @property
    def lengths_s(self) -> Line:
        """How much of each step is in the span."""
        low = np.maximum(self.begins_s, self.span.start_s)
        high = np.minimum(self.begins_s + self.step_s, self.span.end_s)
        line: Line = np.maximum(high - low, 1e-9)
        return line

    def empty(self) -> Line:
        """Nothing told."""
        return np.full(self.steps, np.nan)


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
    forgot_names: bool = False
    events: dict[tuple[str, str, str], int] = Factory(dict)
    late: dict[tuple[str, str], int] = Factory(dict)
    rejected: list[Rejected] = Factory(list)
    rejected_rows: int = 0
    rows: dict[str, int] = Factory(dict)
    left_out: list[LeftOut] = Factory(list)
    odd: dict[str, int] = Factory(dict)
    """By table: rows that were set aside, as they can't be."""
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


def collect(reader: Reader, most_nodes: int = MOST_NODES) -> Facts | None:
    """Read everything; nothing where no window lies in the span."""
    span = reader.span or reader.whole_span([table for table in t.TABLES if "window_start" in table.columns])
    if span is None:
        return None
    reader.span = span
    window_s, apart_s = _steps_of(reader)
    facts = Facts(Axis.of(span, max(window_s, apart_s)), window_s, _samples_of(reader))
    sums = _Sums(reader, facts)
    for read in (
        sums.read_rates,
        sums.read_gauges,
        sums.read_histograms,
        sums.read_reconnects,
        sums.read_connections,
        sums.read_drops,
        sums.read_refusals,
        sums.read_tops,
        sums.read_events,
        sums.read_late,
        sums.read_rejected,
    ):
        read()
    facts.missing = missing(reader)
    reader.progress.end()
    sums.settle_nodes(most_nodes)
    facts.rows = dict(reader.rows)
    facts.odd = dict(reader.odd)
    facts.left_out = sorted(reader.left_out.values(), key=lambda left: left.path)
    return facts


def _steps_of(reader: Reader) -> tuple[int, int]:
    """How long windows are, and how far those that are told lie apart: samples may come more seldom than windows."""
    for table in (t.RATES, t.GAUGES, t.HISTOGRAMS, t.EVENTS, t.USUAL, t.DROPS, t.RECONNECTS, t.CONNECTIONS):
        for piece in reader.pieces(table, ("window_s",), count=False, files=table.files(reader.folder)[-3:]):
            window_s = int(pc.max(piece["window_s"]).as_py() or 1)
            starts = reader.starts(t.RATES)
            gaps = sorted(b - a for a, b in pairwise(starts))
            apart_s = gaps[(len(gaps) - 1) // 2] // 1_000_000 if gaps else window_s
            # Windows may be far apart for other reasons; only a small factor speaks of samples.
            return window_s, apart_s if window_s < apart_s <= 12 * window_s else window_s
    return 1, 1


def _samples_of(reader: Reader) -> int:
    """How many samples of a counter a window has: one, where windows are as long as the interval between samples."""
    files = t.RATES.files(reader.folder)[-3:]
    found = [
        pc.quantile(piece["samples"], 0.5, interpolation="lower")[0].as_py()
        for piece in reader.pieces(t.RATES, ("samples",), count=False, files=files)
    ]
    return max(filter(None, found), default=1)


@define(slots=True, eq=False)
class _Sums:
    """Fills :class:`Facts`, table by table."""

    reader: Reader
    facts: Facts
    weight: dict[str, int] = field(factory=lambda: defaultdict(int))
    """Bytes and messages by node: who is told of singly."""
    seen: dict[str, None] = field(factory=dict)
    lengths: Sketches = field(factory=Sketches)
    """Of connections, by node and step."""

    def _pieces(self, table: t.Table, columns: Sequence[str]) -> Iterator[pa.Table]:
        """With the number of the step in place of the window's start."""
        axis = self.facts.axis
        for piece in self.reader.pieces(table, ["window_start", *columns]):
            if piece.num_rows:
                piece = piece.set_column(0, "step", axis.step(piece["window_start"]))
                if "node" in columns:
                    self.seen.update(dict.fromkeys(pc.unique(piece["node"].drop_null()).to_pylist()))
                yield piece

    def _line(self, into: dict[Any, Line], key: Any) -> Line:
        line = into.get(key)
        if line is None:
            line = into[key] = self.facts.axis.empty()
        return line

    def _add(self, into: dict[Any, Line], key: Any, step: int, value: float) -> None:
        line = self._line(into, key)
        line[step] = value if np.isnan(line[step]) else line[step] + value

    def read_rates(self) -> None:
        """Counters, and those of the limiter by rule."""
        facts = self.facts
        keys = ("step", "node", "name", "unit", "rule")

        def pieces() -> Iterator[pa.Table]:
            for piece in self._pieces(t.RATES, ("node", "name", "unit", "labels", "delta")):
                limiter = pc.is_in(piece["name"], value_set=pa.array(_RULES))
                rule = pc.if_else(
                    limiter, pc.map_lookup(piece["labels"], "rule", "first"), pa.scalar(None, pa.string())
                )
                yield piece.drop_columns(["labels"]).append_column("rule", rule)

        for row in _rows(summed(pieces(), keys, {"delta": "sum"})):
            node, name, delta = row["node"], row["name"], row["delta"] or 0
            facts.units[name] = row["unit"] or ""
            self._add(facts.rates, (node, name), row["step"], delta)
            facts.totals[node, name] = facts.totals.get((node, name), 0) + delta
            if name in ("messages.received", "messages.sent"):
                self.weight[node] += delta
            if name in _RULES:
                key = (name, row["rule"] or "(no name)")
                self._add(facts.rules, key, row["step"], delta)
                facts.rule_totals[key] = facts.rule_totals.get(key, 0) + delta

    def read_gauges(self) -> None:
        """Means and bounds of all; of some the percentiles, from the merged sketches of a step's windows."""
        how = {"sum": "sum", "samples": "sum", "min": "min", "max": "max"}
        sketches = Sketches()

        def pieces() -> Iterator[pa.Table]:
            columns = ("node", "name", "samples", "min", "max", "mean", "sketch")
            for piece in self._pieces(t.GAUGES, columns):
                piece = piece.filter(pc.is_in(piece["name"], value_set=pa.array(GAUGES)))
                spread = piece.filter(pc.is_in(piece["name"], value_set=pa.array(SPREAD)))
                for row in _rows(spread.select(["node", "name", "step", "samples", "sketch"])):
                    sketches.add(row["sketch"], row["samples"] or 0, ((row["node"], row["name"]), row["step"]))
                samples = piece["samples"].cast(pa.float64())
                yield piece.append_column("sum", pc.multiply(piece["mean"], samples)).select(
                    ["step", "node", "name", *how]
                )

        axis = self.facts.axis
        raw: dict[tuple[str, str], list[Any]] = defaultdict(list)
        for row in _rows(summed(pieces(), ("step", "node", "name"), how)):
            raw[row["node"], row["name"]].append(row)
        for key, rows in raw.items():
            line = GaugeLine(axis.empty(), np.inf, -np.inf, 0.0)
            whole = samples = 0.0
            for row in rows:
                step, count = row["step"], row["samples"] or 0
                if not count or None in row.values():
                    continue
                line.mean[step] = row["sum"] / count
                line.low, line.high = min(line.low, row["min"]), max(line.high, row["max"])
                whole, samples = whole + row["sum"], samples + count
            if samples:
                line.whole_mean = whole / samples
                self.facts.gauges[key] = line
        self.facts.gauge_spreads = _spreads(sketches, axis)
        self._unread(t.GAUGES, sketches)

    def _unread(self, table: t.Table, sketches: Sketches) -> None:
        if sketches.unread:
            self.facts.unread_sketches[table.name] = sketches.unread

    def read_histograms(self) -> None:
        """Counts of the same bounds are added up; where bounds changed, those with the most observations are told."""
        steps = self.facts.axis.steps
        counts: dict[tuple[str, str, tuple[float, ...]], npt.NDArray[np.int64]] = {}
        totals: dict[tuple[str, str, tuple[float, ...]], float] = defaultdict(float)
        for piece in self._pieces(t.HISTOGRAMS, ("node", "name", "unit", "bounds", "counts", "sum")):
            pairs_of_units = piece.group_by(["name", "unit"]).aggregate([])
            self.facts.histogram_units.update((row["name"], row["unit"] or "") for row in pairs_of_units.to_pylist())
            for chosen, bounds in _same_bounds(piece):
                width = len(bounds) + 1
                values = chosen["counts"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
                matrix = values.reshape(-1, width)
                step = chosen["step"].to_numpy()
                nodes, names = (chosen[column].combine_chunks().dictionary_encode() for column in ("node", "name"))
                pairs = nodes.indices.to_numpy() * len(names.dictionary) + names.indices.to_numpy()
                sums = pc.fill_null(chosen["sum"], 0.0).to_numpy()
                for pair in np.unique(pairs):
                    node, name = divmod(int(pair), len(names.dictionary))
                    key = (nodes.dictionary[node].as_py(), names.dictionary[name].as_py(), bounds)
                    here = pairs == pair
                    into = counts.get(key)
                    if into is None:
                        into = counts[key] = np.zeros((steps, width), np.int64)
                    np.add.at(into, step[here], matrix[here])
                    totals[key] += float(sums[here].sum())
        for key in sorted(counts, key=lambda key: int(counts[key].sum())):
            self.facts.histograms[key[:2]] = _histogram_line(counts[key], key[2], totals[key])

    def read_reconnects(self) -> None:
        """How many connected, and the storms."""
        facts = self.facts
        storms: list[Storm] = []
        columns = ("node", "connects", "clients", "client", "most", "storm")
        for piece in self.reader.pieces(t.RECONNECTS, ("window_start", *columns)):
            step = facts.axis.step(piece["window_start"])
            counted = _group_rows(piece.append_column("step", step), ("step", "node"), {"connects": "sum"})
            for row in counted:
                self.seen[row["node"]] = None
                connects = row["connects"] or 0
                self._add(facts.connects, row["node"], row["step"], connects)
                facts.connect_total += connects
            stormy = piece.append_column("step", step).filter(pc.fill_null(piece["storm"], False))
            facts.storm_windows += stormy.num_rows
            for row in stormy.to_pylist():
                self._line(facts.storm_lines, row["node"])[row["step"]] = 1.0
                storms.append(
                    Storm(
                        row["window_start"] / 1e6,
                        row["node"],
                        row["connects"] or 0,
                        row["clients"] or 0,
                        row["client"],
                        row["most"] or 0,
                    )
                )
            storms = sorted(storms, key=lambda storm: -storm.connects)[:_MOST_STORMS]
        facts.storms = sorted(storms, key=lambda storm: storm.start_s)

    def read_connections(self) -> None:
        """How long connections lasted: percentiles from the merged sketches, by step and node, and by reason."""
        facts = self.facts
        reasons, sketches = Sketches(), self.lengths

        def pieces() -> Iterator[pa.Table]:
            columns = ("node", "reason", "connections", "sum_s", "max_s", "sketch")
            for piece in self._pieces(t.CONNECTIONS, columns):
                for row in _rows(piece.filter(pc.greater(piece["connections"], 0))):
                    if sketches.add(row["sketch"], row["connections"], (row["node"], row["step"])):
                        reasons.add(row["sketch"], row["connections"], row["reason"] or "")
                yield piece.select(["reason", "connections", "sum_s", "max_s"])

        how = {"connections": "sum", "sum_s": "sum", "max_s": "max"}
        for row in _rows(summed(pieces(), ("reason",), how)):
            number = row["connections"] or 0
            if not number:
                continue
            reason = facts.lengths[row["reason"] or ""] = Lengths(number, row["sum_s"] or 0.0, row["max_s"] or 0.0)
            percentiles = reasons.quantiles(row["reason"] or "")
            if percentiles is not None:
                reason.p50_s, _, reason.p99_s = percentiles
        facts.length_lines = _spreads(sketches, facts.axis)
        self._unread(t.CONNECTIONS, sketches)

    def read_drops(self) -> None:
        """Messages that did not reach a client, by reason."""
        facts = self.facts
        pieces = self._pieces(t.DROPS, ("node", "reason", "messages"))
        for row in _rows(summed(pieces, ("step", "node", "reason"), {"messages": "sum"})):
            reason, messages = row["reason"] or "", row["messages"] or 0
            if not messages:
                continue
            self._add(facts.drops, reason, row["step"], messages)
            key = (row["node"], reason)
            facts.drop_totals[key] = facts.drop_totals.get(key, 0) + messages

    def read_refusals(self) -> None:
        """What was refused, by whom."""
        facts = self.facts
        pieces = self._pieces(t.REFUSALS, ("node", "name", "by", "reason", "refusals"))
        for row in _rows(summed(pieces, ("step", "node", "name", "by", "reason"), {"refusals": "sum"})):
            by, refusals = row["by"] or "(not said)", row["refusals"] or 0
            if not refusals:
                continue
            self._add(facts.refusals, by, row["step"], refusals)
            key = (row["node"], row["name"] or "", by, row["reason"] or "")
            facts.refusal_totals[key] = facts.refusal_totals.get(key, 0) + refusals

    def read_tops(self) -> None:
        """Clients and topics, summed over the windows in which they were among the top."""
        facts = self.facts
        facts.clients, facts.clients_rest = self._top(t.TOP_CLIENTS, "client")
        facts.topics, facts.topics_rest = self._top(t.TOP_TOPICS, "topic")

    def _top(self, table: t.Table, column: str) -> tuple[dict[str, dict[str, tuple[int, int]]], tuple[int, int]]:
        rest = [0, 0]
        kept: pa.Table | None = None
        for piece in self._pieces(table, ("node", "rank", column, "messages", "bytes")):
            for name in ("messages", "bytes"):
                piece = piece.set_column(piece.column_names.index(name), name, pc.fill_null(piece[name], 0))
            named = piece.filter(pc.greater(piece["rank"], 0)).drop_columns(["step", "rank"])
            unnamed = piece.filter(pc.less_equal(piece["rank"], 0))
            rest[0] += pc.sum(unnamed["messages"]).as_py() or 0
            rest[1] += pc.sum(unnamed["bytes"]).as_py() or 0
            both = [named] if kept is None else [kept, named.select(kept.column_names)]
            kept = summed([pa.concat_tables(both)], (column, "node"), {"messages": "sum", "bytes": "sum"})
            if kept is not None and kept.num_rows > MOST_NAMES:
                self.facts.forgot_names = True
                kept = kept.sort_by([("bytes", "descending")]).slice(0, MOST_NAMES // 2)
        found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        if kept is None:
            return found, (0, 0)
        heaviest = summed([kept], (column,), {"bytes": "sum", "messages": "sum"})
        assert heaviest is not None
        order = [("bytes", "descending"), ("messages", "descending"), (column, "ascending")]
        names = heaviest.sort_by(order).slice(0, 12)[column]
        chosen = kept.filter(pc.is_in(kept[column], value_set=names.combine_chunks()))
        for name in names.to_pylist():
            found[name] = {}
        for row in chosen.to_pylist():
            found[row[column]][row["node"]] = (row["messages"], row["bytes"])
        beyond = heaviest.sort_by(order).slice(12)
        return dict(found), (
            rest[0] + (pc.sum(beyond["messages"]).as_py() or 0),
            rest[1] + (pc.sum(beyond["bytes"]).as_py() or 0),
        )

    def read_events(self) -> None:
        """How often each thing happened."""
        pieces = self._pieces(t.EVENTS, ("node", "name", "reason", "events"))
        for row in _rows(summed(pieces, ("node", "name", "reason"), {"events": "sum"})):
            self.facts.events[row["node"], row["name"] or "", row["reason"] or ""] = row["events"] or 0

    def read_late(self) -> None:
        """Records that came too late; the table does not say for which window."""
        pieces = self.reader.pieces(t.LATE, ("node", "kind", "records"))
        for row in _rows(summed(pieces, ("node", "kind"), {"records": "sum"})):
            self.facts.late[row["node"], row["kind"] or ""] = row["records"] or 0

    def read_rejected(self) -> None:
        """What could not be read."""
        facts = self.facts
        for piece in self.reader.pieces(t.REJECTED, ("file", "line", "why", "text")):
            facts.rejected_rows += piece.num_rows
            for row in piece.slice(0, max(0, _MOST_REJECTED - len(facts.rejected))).to_pylist():
                facts.rejected.append(Rejected(row["file"], row["line"], row["why"], row["text"]))

    def settle_nodes(self, most: int) -> None:
        """Put nodes in order; where there are too many, those with the least traffic become one."""
        facts = self.facts
        every = sorted(self.seen)
        if len(every) <= most:
            facts.nodes = every
            return
        heaviest = set(sorted(every, key=lambda node: (-self.weight.get(node, 0), node))[: most - 1])
        facts.nodes = [*(node for node in every if node in heaviest), OTHER_NODES]
        facts.others = [node for node in every if node not in heaviest]
        self._merge_others()

    def _merge_others(self) -> None:
        facts = self.facts
        others = set(facts.others)

        def node_of(node: str) -> str:
            return OTHER_NODES if node in others else node

        rates: dict[tuple[str, str], list[Line]] = defaultdict(list)
        for (node, name), line in facts.rates.items():
            rates[node_of(node), name].append(line)
        facts.rates = {key: together(lines) for key, lines in rates.items()}
        facts.totals = _added((node_of(node), name, value) for (node, name), value in facts.totals.items())
        facts.drop_totals = _added((node_of(node), reason, n) for (node, reason), n in facts.drop_totals.items())
        connects: dict[str, list[Line]] = defaultdict(list)
        for node, line in facts.connects.items():
            connects[node_of(node)].append(line)
        facts.connects = {node: together(lines) for node, lines in connects.items()}
        histograms: dict[tuple[str, str], list[HistogramLine]] = defaultdict(list)
        for (node, name), histogram in facts.histograms.items():
            histograms[node_of(node), name].append(histogram)
        facts.histograms = {key: _merged(found) for key, found in histograms.items()}
        # What several nodes had at different moments is no gauge of them together: the others' are in no plot.
        facts.gauges = {key: line for key, line in facts.gauges.items() if key[0] not in others}
        facts.gauge_spreads = {key: line for key, line in facts.gauge_spreads.items() if key[0] not in others}
        for step in {step for node, step in self.lengths.known() if node in others}:
            self.lengths.join((OTHER_NODES, step), [(node, step) for node in others])
        facts.length_lines = {
            node: line for node, line in _spreads(self.lengths, facts.axis).items() if node not in others
        }
        for names in (facts.clients, facts.topics):
            for name, by_node in names.items():
                merged: dict[str, tuple[int, int]] = {}
                for node, (messages, size) in by_node.items():
                    before = merged.get(node_of(node), (0, 0))
                    merged[node_of(node)] = (before[0] + messages, before[1] + size)
                names[name] = merged


def _spreads(sketches: Sketches, axis: Axis) -> dict[Any, Spread]:
    """Percentiles of each step, of sketches whose keys are whose they are and the step."""
    found: dict[Any, Spread] = {}
    for of, step in sketches.known():
        percentiles = sketches.quantiles((of, step))
        assert percentiles is not None
        line = found.setdefault(of, Spread(axis.empty(), axis.empty(), axis.empty()))
        line.p50[step], line.p95[step], line.p99[step] = percentiles
    return found


def _added(rows: Iterable[tuple[str, str, int]]) -> dict[tuple[str, str], int]:
    found: dict[tuple[str, str], int] = defaultdict(int)
    for node, name, value in rows:
        found[node, name] += value
    return dict(found)


def _rows(table: pa.Table | None) -> Iterator[dict[str, Any]]:
    if table is not None:
        for batch in table.to_batches(10_000):
            yield from batch.to_pylist()


def _group_rows(piece: pa.Table, keys: Sequence[str], how: dict[str, str]) -> Iterator[dict[str, Any]]:
    return _rows(summed([piece], keys, how))


def _same_bounds(piece: pa.Table) -> Iterator[tuple[pa.Table, tuple[float, ...]]]:
    """Rows by their bounds; those whose counts don't fit to them are no histogram, and left out."""
    good = pc.equal(pc.list_value_length(piece["counts"]), pc.add(pc.list_value_length(piece["bounds"]), 1))
    rest = piece.filter(pc.fill_null(good, False))
    while rest.num_rows:
        bounds = tuple(rest["bounds"][0].as_py())
        same = pc.equal(pc.list_value_length(rest["bounds"]), len(bounds))
        candidates = rest.filter(same)
        if bounds:
            flat = candidates["bounds"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            equal = (flat.reshape(-1, len(bounds)) == np.array(bounds)).all(axis=1)
        else:
            equal = np.ones(candidates.num_rows, bool)
        equal[0] = True
        yield candidates.filter(pa.array(equal)), bounds
        rest = pa.concat_tables([rest.filter(pc.invert(same)), candidates.filter(pa.array(~equal))])


def _histogram_line(counts: npt.NDArray[np.int64], bounds: tuple[float, ...], total: float) -> HistogramLine:
    lines = [quantile_of(counts, bounds, q) for q in QUANTILES]
    whole = [float(quantile_of(counts.sum(axis=0, keepdims=True), bounds, q)[0]) for q in QUANTILES]
    return HistogramLine(
        lines[0], lines[1], lines[2], (whole[0], whole[1], whole[2]), int(counts.sum()), total, counts, bounds
    )


def _merged(lines: Sequence[HistogramLine]) -> HistogramLine:
    """Of several nodes; where their bounds differ, of those that have the first one's."""
    alike = [line for line in lines if line.bounds == lines[0].bounds]
    counts = np.sum([line.counts for line in alike], axis=0)
    return _histogram_line(counts, lines[0].bounds, sum(line.total for line in alike))


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
