"""From the tables to the figures of a report: runs the queries in ``sql/``, which add up, and merges sketches.

Sums are exact. Memory is bounded by the number of steps, nodes and names that a report shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
from typing import Any, Final

import numpy as np
from attrs import define, field

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report.database import Database
from kinmqtt_metrics.report.facts import OTHER_NODES, SPREAD, Facts, GaugeLine, Lengths, Rejected, Spread, Storm
from kinmqtt_metrics.report.gaps import missing
from kinmqtt_metrics.report.histograms import histogram_line
from kinmqtt_metrics.report.sketches import Sketches
from kinmqtt_metrics.report.time_axis import Axis, Line

MOST_NODES: Final = 8
"""Nodes with a colour of their own; if there are more, those with the least traffic are shown as one."""
_MOST_NAMES: Final = 12
_MOST_STORMS: Final = 12
_MOST_REJECTED: Final = 8

_GAUGES: Final = (
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
"""Gauges that are drawn or stand in a table."""

_RULES: Final = ("limiter.shadow_blocked", "limiter.blocked", "limiter.delayed")


def collect(database: Database, most_nodes: int = MOST_NODES) -> Facts | None:
    """Read all tables. Returns ``None`` if there is no window."""
    if database.span is None:
        database.span = database.whole_span()
        if database.span is None:
            return None
    database.make_views()
    [windows] = database.query("windows")
    axis = Axis.of(database.span, _least_step_s(database, windows["window_s"]))
    facts = Facts(axis, windows["window_s"], windows["samples"])
    _choose_nodes(database, facts, most_nodes)
    database.make_macros(axis, facts.others)
    aggregation = _Aggregation(database, facts)
    for done, step in enumerate(aggregation.steps):
        database.progress.update("adding up, parts", done, len(aggregation.steps))
        step()
    facts.missing = missing(database)
    database.progress.end()
    facts.rows = dict(database.rows)
    facts.invalid = dict(database.invalid)
    facts.left_out = sorted(database.left_out.values(), key=lambda left: left.path)
    return facts


def _least_step_s(database: Database, window_s: int) -> int:
    """Returns the time between samples if that is longer than a window."""
    starts = [row["window_start"] for row in database.query("window_starts")]
    gaps = sorted(b - a for a, b in pairwise(starts))
    apart_s = gaps[(len(gaps) - 1) // 2] // 1_000_000 if gaps else window_s
    # Windows may be far apart for other reasons; only a small factor speaks of samples.
    return apart_s if window_s < apart_s <= 12 * window_s else window_s


def _choose_nodes(database: Database, facts: Facts, most: int) -> None:
    traffic = {row["node"]: row["messages"] for row in database.query("nodes")}
    facts.nodes = sorted(traffic)
    if len(traffic) > most:
        busiest = set(sorted(traffic, key=lambda node: (-traffic[node], node))[: most - 1])
        facts.others = [node for node in facts.nodes if node not in busiest]
        facts.nodes = [*(node for node in facts.nodes if node in busiest), OTHER_NODES]


@define(slots=True, eq=False)
class _Aggregation:
    """Fills :class:`Facts`, query by query."""

    database: Database
    facts: Facts
    steps: tuple[Callable[[], None], ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.steps = (
            self._rates,
            self._gauges,
            self._gauge_spreads,
            self._histograms,
            self._reconnects,
            self._connections,
            self._drops,
            self._refusals,
            self._tops,
            self._events,
            self._late_and_rejected,
        )

    def _add(self, into: dict[Any, Line], key: Any, step: int, value: float) -> None:
        line = into.get(key)
        if line is None:
            line = into[key] = self.facts.axis.empty()
        line[step] = value if np.isnan(line[step]) else line[step] + value

    def _rates(self) -> None:
        facts = self.facts
        totals: dict[tuple[str, str], int] = defaultdict(int)
        rule_totals: dict[tuple[str, str], int] = defaultdict(int)
        for row in self.database.query("rates", rules=_RULES):
            step, node, name, rule, delta = (row[key] for key in ("step", "node", "name", "rule", "delta"))
            facts.units[name] = row["unit"] or ""
            self._add(facts.rates, (node, name), step, delta)
            totals[node, name] += delta
            if rule is not None:
                self._add(facts.rules, (name, rule), step, delta)
                rule_totals[name, rule] += delta
        facts.totals, facts.rule_totals = dict(totals), dict(rule_totals)

    def _gauges(self) -> None:
        facts = self.facts
        sums: dict[tuple[str, str], tuple[float, int]] = defaultdict(lambda: (0.0, 0))
        for row in self.database.query("gauges", names=_GAUGES):
            key = row["node"], row["name"]
            line = facts.gauges.setdefault(key, GaugeLine(facts.axis.empty(), np.inf, -np.inf, 0.0))
            line.mean[row["step"]] = row["total"] / row["samples"]
            line.low, line.high = min(line.low, row["low"]), max(line.high, row["high"])
            total, samples = sums[key]
            sums[key] = total + row["total"], samples + row["samples"]
        for key, (total, samples) in sums.items():
            facts.gauges[key].whole_mean = total / samples

    def _gauge_spreads(self) -> None:
        sketches = Sketches()
        for row in self.database.query("gauge_sketches", names=SPREAD):
            sketches.add(row["sketch"], row["samples"], ((row["node"], row["name"]), row["step"]))
        spreads = _spreads(sketches, self.facts.axis)
        self.facts.gauge_spreads = {key: spread for key, spread in spreads.items() if key[0] != OTHER_NODES}
        self._note_unread(t.GAUGES, sketches)

    def _note_unread(self, table: t.Table, sketches: Sketches) -> None:
        if sketches.unread:
            self.facts.unread_sketches[table.name] = sketches.unread

    def _histograms(self) -> None:
        """If bounds changed, the histogram with the most observations is shown."""
        facts = self.facts
        counts: dict[tuple[str, str, tuple[float, ...]], Any] = {}
        totals: dict[tuple[str, str, tuple[float, ...]], float] = defaultdict(float)
        for row in self.database.query("histograms"):
            key = row["node"], row["name"], tuple(row["bounds"])
            facts.histogram_units[row["name"]] = row["unit"] or ""
            if key not in counts:
                counts[key] = np.zeros((facts.axis.steps, len(row["counts"])), np.int64)
            counts[key][row["step"]] = row["counts"]
            totals[key] += row["total"]
        for key in sorted(counts, key=lambda key: int(counts[key].sum())):
            facts.histograms[key[:2]] = histogram_line(counts[key], key[2], totals[key])

    def _reconnects(self) -> None:
        facts = self.facts
        for row in self.database.query("connects"):
            self._add(facts.connects, row["node"], row["step"], row["connects"])
            facts.connect_total += row["connects"]
        for row in self.database.query("storm_steps"):
            facts.storm_lines.setdefault(row["node"], facts.axis.empty())[row["step"]] = 1.0
            facts.storm_windows += row["windows"]
        storms = [
            Storm(row.pop("window_start") / 1e6, **row) for row in self.database.query("storms", most=_MOST_STORMS)
        ]
        facts.storms = sorted(storms, key=lambda storm: storm.start_s)

    def _connections(self) -> None:
        facts = self.facts
        by_step, by_reason = Sketches(), Sketches()
        for row in self.database.query("connection_sketches"):
            if by_step.add(row["sketch"], row["connections"], (row["node"], row["step"])):
                by_reason.add(row["sketch"], row["connections"], row["reason"])
        for row in self.database.query("connections"):
            lengths = facts.lengths[row["reason"]] = Lengths(row["connections"], row["sum_s"], row["max_s"])
            percentiles = by_reason.quantiles(row["reason"])
            if percentiles is not None:
                lengths.p50_s, _, lengths.p99_s = percentiles
        facts.length_lines = _spreads(by_step, facts.axis)
        self._note_unread(t.CONNECTIONS, by_step)

    def _drops(self) -> None:
        totals: dict[tuple[str, str], int] = defaultdict(int)
        for row in self.database.query("drops"):
            self._add(self.facts.drops, row["reason"], row["step"], row["messages"])
            totals[row["node"], row["reason"]] += row["messages"]
        self.facts.drop_totals = dict(totals)

    def _refusals(self) -> None:
        totals: dict[tuple[str, str, str, str], int] = defaultdict(int)
        for row in self.database.query("refusals"):
            self._add(self.facts.refusals, row["by"], row["step"], row["refusals"])
            totals[row["node"], row["name"], row["by"], row["reason"]] += row["refusals"]
        self.facts.refusal_totals = dict(totals)

    def _tops(self) -> None:
        facts = self.facts
        facts.clients, facts.clients_rest = self._top("client")
        facts.topics, facts.topics_rest = self._top("topic")

    def _top(self, kind: str) -> tuple[dict[str, dict[str, tuple[int, int]]], tuple[int, int]]:
        found: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
        rest = 0, 0
        for row in self.database.query("top", kind=kind, most=_MOST_NAMES):
            published = row["messages"], row["bytes"]
            if row["place"]:
                found[row["name"]][row["node"]] = published
            else:
                rest = published
        return dict(found), rest

    def _events(self) -> None:
        for row in self.database.query("events"):
            self.facts.events[row["node"], row["name"], row["reason"]] = row["events"]

    def _late_and_rejected(self) -> None:
        facts = self.facts
        facts.late = {(row["node"], row["kind"]): row["records"] for row in self.database.query("late")}
        facts.rejected = [Rejected(**row) for row in self.database.query("rejected", most=_MOST_REJECTED)]
        facts.rejected_rows = self.database.rows.get(t.REJECTED.name, 0)


def _spreads(sketches: Sketches, axis: Axis) -> dict[Any, Spread]:
    """Returns the percentiles of each step; the keys of ``sketches`` are pairs with the step in second place."""
    found: dict[Any, Spread] = {}
    for key, step in sketches.known():
        percentiles = sketches.quantiles((key, step))
        assert percentiles is not None
        line = found.setdefault(key, Spread(axis.empty(), axis.empty(), axis.empty()))
        line.p50[step], line.p95[step], line.p99[step] = percentiles
    return found
