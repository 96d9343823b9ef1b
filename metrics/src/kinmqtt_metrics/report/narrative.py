"""What the templates of a report need beside the figures: what stands out, and the rows of the tables on the page."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

import numpy as np
from attrs import field, frozen

from kinmqtt_metrics import formatting
from kinmqtt_metrics.report import reasons
from kinmqtt_metrics.report.facts import OTHER_NODES, Facts, together
from kinmqtt_metrics.report.time_axis import Line

if TYPE_CHECKING:
    from kinmqtt_metrics.report.plots import Painter, Plot

Row: TypeAlias = tuple[str, ...]
"""A row of a table on the page."""

_MOST_REASONS: Final = 20
_MOST_LENGTHS: Final = 15
MOST_RULES: Final = 25
MOST_EVENTS: Final = 80

SECTIONS: Final = {
    "traffic": "Traffic",
    "latency": "Latency",
    "queues": "Queues",
    "clients": "Clients and sessions",
    "lengths": "How long connections lasted",
    "reconnects": "Reconnect storms",
    "drops": "Messages dropped",
    "refusals": "Refusals",
    "shadow": "Limiter rules, and what they would have done",
    "tops": "Who publishes, and to what",
    "everything": "Everything that was counted",
}
"""The sections' names, which are those of their templates, and their titles."""


@frozen(slots=True)
class Peak:
    """The highest value of a line."""

    begins_s: float
    """Start of its step, in seconds since the epoch."""
    value: float
    of: str = ""
    """The node, or the reason, that it belongs to."""


@frozen(slots=True)
class Clients:
    """How many clients were connected."""

    mean: float
    highest: float


@frozen(slots=True)
class Outage:
    """A node without data for some steps between others."""

    node: str
    lost_s: float
    begins_s: float


@frozen(eq=False)
class Narrative:
    """Finds what the templates say. They use its methods and attributes by name."""

    facts: Facts
    painter: Painter
    plots: dict[str, list[Plot]] = field(init=False)
    """By section."""

    def __attrs_post_init__(self) -> None:
        paint = self.painter
        found: dict[str, Iterable[Plot | None]] = {
            "traffic": (paint.messages(), paint.bytes()),
            "latency": paint.latencies(),
            "queues": (paint.queues(),),
            "clients": (paint.clients(),),
            "lengths": (paint.lengths(),),
            "reconnects": (paint.connects(),),
            "drops": (paint.drops(),),
            "refusals": (paint.refusals(),),
            "shadow": (paint.shadow(),),
            "tops": (paint.top_clients(), paint.top_topics()),
            "everything": (),
        }
        plots = {section: [plot for plot in plots if plot is not None] for section, plots in found.items()}
        object.__setattr__(self, "plots", plots)

    def all_plots(self) -> list[Plot]:
        """Returns the plots in the order of the page."""
        return [plot for section in SECTIONS for plot in self.plots[section]]

    # What stands out

    def has(self, counter: str) -> bool:
        """Tells whether a counter is in the table ``rates``."""
        return any(name == counter for _, name in self.facts.totals)

    def clients(self) -> Clients | None:
        """Returns how many clients were connected to all nodes together."""
        lines = [line.mean for (_, name), line in self.facts.gauges.items() if name == "clients.connected"]
        line = together(lines)
        return Clients(float(np.nanmean(line)), float(np.nanmax(line))) if lines else None

    def _peak(self, line: Line, of: str = "") -> Peak | None:
        at = _highest(line)
        if at is None or line[at] <= 0:
            return None
        axis = self.facts.axis
        return Peak(max(float(axis.begins_s[at]), axis.span.start_s), float(line[at]), of)

    def rate_peak(self, counter: str) -> Peak | None:
        """Returns the step with the highest rate of a counter, a second, of all nodes together."""
        return self._peak(self.facts.node_line(counter) / self.facts.axis.lengths_s) if self.has(counter) else None

    def commit_peak(self) -> Peak | None:
        """Returns the node and step with the longest commits: their p99."""
        found = self.facts.histograms.items()
        return self._worst((node, line.p99) for (node, name), line in found if name == "stores.commit")

    def queue_peak(self) -> Peak | None:
        """Returns the node and step with the longest queues: their p99."""
        found = self.facts.gauge_spreads.items()
        return self._worst((node, line.p99) for (node, name), line in found if name == "queued.count")

    def _worst(self, lines: Iterable[tuple[str, Line]]) -> Peak | None:
        peaks = [peak for node, line in lines if (peak := self._peak(line, node)) is not None]
        return max(peaks, key=lambda peak: peak.value, default=None)

    def sum_peak(self, lines: Mapping[str, Line]) -> Peak | None:
        """Returns the step with the highest sum of these lines, and which of them has most of it."""
        line = together(lines.values())
        at = _highest(line)
        return (
            None if at is None else self._peak(line, max(lines, key=lambda key: float(np.nan_to_num(lines[key])[at])))
        )

    def outages(self) -> list[Outage]:
        """Returns the nodes without samples for some steps between others.

        If a window has one sample, a late sample leaves one window empty and the next one has two: that is no outage.
        """
        axis, found = self.facts.axis, []
        least = 2 if self.facts.samples <= 1 and axis.step_s <= self.facts.window_s else 1
        for node in self.facts.nodes:
            lines = [line for (of, _), line in self.facts.rates.items() if of == node]
            if not lines:
                continue
            there = np.flatnonzero(~np.isnan(together(lines)))
            missing = np.setdiff1d(np.arange(there[0], there[-1] + 1), there)
            runs = np.split(missing, np.flatnonzero(np.diff(missing) != 1) + 1)
            missing = np.concatenate([run for run in runs if len(run) >= least] or [missing[:0]])
            if len(missing):
                found.append(Outage(node, len(missing) * axis.step_s, float(axis.begins_s[missing[0]])))
        return found

    def late_by_node(self) -> list[tuple[str, int]]:
        """Returns the records that came too late, by node."""
        nodes: dict[str, int] = defaultdict(int)
        for (node, _), records in self.facts.late.items():
            nodes[node] += records
        return sorted(nodes.items())

    def absence(self, table: str) -> str:
        """Returns why a plot is missing: the table is ``unreadable``, ``empty``, or has ``other`` rows only."""
        if any(left.path.startswith(f"{table}/") for left in self.facts.left_out):
            return "unreadable"
        return "other" if self.facts.rows.get(table) else "empty"

    # Rows of the tables

    def rejected_rows(self) -> list[Row]:
        """Returns the first lines and files that could not be read."""
        name = formatting.name
        return [
            (name(row.file, 90), str(row.line or "whole file"), name(row.why, 80), name(row.text, 60))
            for row in self.facts.rejected
        ]

    def left_out_rows(self) -> list[Row]:
        """Returns the first files of the tables that could not be read."""
        return [(formatting.name(left.path, 90), formatting.name(left.why, 160)) for left in self.facts.left_out[:20]]

    def traffic_rows(self) -> list[Row]:
        """Returns the traffic of each node."""
        facts = self.facts
        rows: list[Row] = []
        for node in facts.nodes:
            if (node, "messages.received") in facts.totals:
                received, sent, received_bytes, sent_bytes = (
                    facts.totals.get((node, name), 0)
                    for name in ("messages.received", "messages.sent", "bytes.received", "bytes.sent")
                )
                line = facts.rates[node, "messages.received"] / facts.axis.lengths_s
                rows.append(
                    (
                        formatting.name(node),
                        formatting.whole(received),
                        formatting.whole(sent),
                        formatting.size(received_bytes),
                        formatting.size(sent_bytes),
                        formatting.short(float(np.nanmax(line))),
                    )
                )
        return rows

    def latency_rows(self) -> list[Row]:
        """Returns the histograms of seconds."""
        facts = self.facts
        return [
            (
                formatting.name(name),
                formatting.name(node),
                formatting.whole(line.observations),
                *map(formatting.duration, (line.total / line.observations, *line.whole)),
            )
            for (node, name), line in sorted(facts.histograms.items(), key=lambda item: item[0][::-1])
            if line.observations and facts.histogram_units.get(name) == "seconds"
        ]

    def gauge_rows(self, names: Sequence[str]) -> list[Row]:
        """Returns the bounds and means of these gauges."""
        return [
            (
                formatting.name(name),
                formatting.name(node),
                *map(formatting.short, (line.low, line.whole_mean, line.high)),
            )
            for name in names
            for node in self.facts.nodes
            if (line := self.facts.gauges.get((node, name))) is not None
        ]

    def length_rows(self) -> list[Row]:
        """Returns how long connections lasted, by the reason of their end."""
        ordered = sorted(self.facts.lengths.items(), key=lambda item: -item[1].connections)
        return [
            (
                reasons.of_end(reason),
                formatting.whole(of.connections),
                formatting.duration(of.sum_s / of.connections),
                *("–" if value is None else formatting.duration(value) for value in (of.p50_s, of.p99_s)),
                formatting.duration(of.max_s),
            )
            for reason, of in ordered[:_MOST_LENGTHS]
        ]

    def storm_rows(self) -> list[Row]:
        """Returns the worst reconnect storms."""
        return [
            (
                formatting.moment(storm.start_s),
                formatting.name(storm.node),
                formatting.name(storm.client),
                formatting.whole(storm.connects),
                formatting.whole(storm.clients),
                formatting.whole(storm.most),
            )
            for storm in self.facts.storms
        ]

    def drop_rows(self) -> list[Row]:
        """Returns the messages that were dropped, by reason and node."""
        sums: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (node, reason), count in self.facts.drop_totals.items():
            sums[reason][node] += count
        ordered = sorted(sums.items(), key=lambda item: -sum(item[1].values()))[:_MOST_REASONS]
        return [(reasons.of_drop(reason), *self._by_node(by_node)) for reason, by_node in ordered]

    def refusal_rows(self) -> list[Row]:
        """Returns the refusals, by event, rule or plugin, and reason."""
        sums: dict[tuple[str, str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (node, name, by, reason), count in self.facts.refusal_totals.items():
            sums[name, by, reason][node] += count
        return [
            (
                formatting.spaced(name),
                formatting.name(by),
                reasons.of_event(name, reason) if reason else formatting.spaced(reason),
                *self._by_node(by_node),
            )
            for (name, by, reason), by_node in sorted(sums.items(), key=lambda item: -sum(item[1].values()))
        ]

    def rule_rows(self) -> list[Row]:
        """Returns what the limiter's rules refused and delayed, and would have refused."""
        totals = self.facts.rule_totals
        names = ("limiter.shadow_blocked", "limiter.blocked", "limiter.delayed")
        rules = {rule: [totals.get((name, rule), 0) for name in names] for rule in sorted({of for _, of in totals})}
        return [
            (formatting.name(rule, 60), *map(formatting.whole, rules[rule]))
            for rule in sorted(rules, key=lambda rule: [-n for n in rules[rule]])
        ]

    def top_rows(self, found: Mapping[str, Mapping[str, tuple[int, int]]], rest: tuple[int, int]) -> list[Row]:
        """Returns the names that published most, or were published to most, and all others."""
        nodes = [formatting.name(node, 20) for node in self.facts.nodes]
        sums = {name: [sum(n[i] for n in by_node.values()) for i in (0, 1)] for name, by_node in found.items()}
        all_bytes = sum(size for _, size in sums.values()) + rest[1]

        def row(name: str, at: str, messages: int, size: int) -> Row:
            share = formatting.share(size, all_bytes)
            return name, at, formatting.whole(messages), formatting.size(size), share

        rows = []
        for name, by_node in found.items():
            at = [shown for node, shown in zip(self.facts.nodes, nodes, strict=True) if node in by_node]
            rows.append(row(formatting.name(name, 60), formatting.listed(at), *sums[name]))
        return [*rows, row("all others", "", *rest)]

    def counter_rows(self) -> list[Row]:
        """Returns the sums of every counter."""
        facts = self.facts
        return [
            (
                formatting.name(name),
                formatting.name(facts.units.get(name, "")),
                *self._by_node({node: facts.totals.get((node, name), 0) for node in facts.nodes}),
            )
            for name in sorted({name for _, name in facts.totals})
        ]

    def event_rows(self) -> list[Row]:
        """Returns how often every event happened."""
        sums: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
        for (node, name, reason), count in self.facts.events.items():
            sums[name, reason][node] += count
        return [
            (
                formatting.spaced(name),
                reasons.of_event(name, reason) if reason else "",
                *self._by_node(by_node),
            )
            for (name, reason), by_node in sorted(sums.items())
        ]

    def read_rows(self) -> list[Row]:
        """Returns how many rows of each table are in the span."""
        return [(name, formatting.whole(rows)) for name, rows in sorted(self.facts.rows.items())]

    def _by_node(self, counts: Mapping[str, int]) -> Row:
        """Returns the sum, and the count of each node."""
        whole: Callable[[float], str] = formatting.whole
        return whole(sum(counts.values())), *(whole(counts.get(node, 0)) for node in self.facts.nodes)

    def real_nodes(self) -> list[str]:
        """Returns all nodes by name, those that are shown as one included."""
        return [
            *(node for node in self.facts.nodes if node != OTHER_NODES or not self.facts.others),
            *self.facts.others,
        ]


def invalid_rows(invalid: Mapping[str, int]) -> str:
    """Returns how many rows of which tables are invalid, as the beginning of a sentence."""
    by_table = [f"{table} ({formatting.whole(rows)})" for table, rows in sorted(invalid.items())]
    return (
        f"{formatting.some(sum(invalid.values()), 'row')} of the tables {formatting.listed(by_table, len(invalid))} "
        "can't be: times, counts or histograms that nobody has"
    )


def _highest(line: Line) -> int | None:
    return None if not len(line) or np.isnan(line).all() else int(np.nanargmax(line))
