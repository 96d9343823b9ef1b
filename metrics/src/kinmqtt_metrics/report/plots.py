"""The plots of a report: which figures each shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import numpy as np

from kinmqtt_metrics import formatting
from kinmqtt_metrics.report.drawing import Drawing, Plot
from kinmqtt_metrics.report.facts import Facts, Spread, together
from kinmqtt_metrics.report.time_axis import Line

__all__ = ["Painter", "Plot"]

_MOST_HISTOGRAMS: Final = 3


class Painter:
    """Draws the figures of a report."""

    def __init__(self, facts: Facts) -> None:
        self._facts = facts
        self._drawing = Drawing(facts.axis, facts.nodes)

    def svg(self, plot: Plot) -> str:
        """Returns a plot as SVG for the page."""
        return self._drawing.svg(plot)

    def png(self, plot: Plot, folder: Path) -> Path:
        """Write a plot as a PNG file. Raises :class:`ReportError`."""
        return self._drawing.png(plot, folder)

    def messages(self) -> Plot | None:
        """Messages a second, by node."""
        return self._rates("messages", "messages.received", "messages.sent", "messages/s", formatting.short)

    def bytes(self) -> Plot | None:
        """Bytes a second, by node."""
        return self._rates("bytes", "bytes.received", "bytes.sent", "per second", formatting.size)

    def latencies(self) -> list[Plot]:
        """Each histogram of seconds."""
        units = self._facts.histogram_units
        names = sorted({name for _, name in self._facts.histograms if units.get(name) == "seconds"})
        plots = [
            self._percentiles(f"latency-{number}" if number else "latency", name, self._facts.histograms)
            for number, name in enumerate(names[:_MOST_HISTOGRAMS])
        ]
        return [plot for plot in plots if plot is not None]

    def queues(self) -> Plot | None:
        """Messages that wait."""
        return self._percentiles("queues", "queued.count", self._facts.gauge_spreads, formatting.short, log=False)

    def clients(self) -> Plot | None:
        """Clients and sessions, by node."""
        wanted = (("clients.connected", "Clients with a connection"), ("sessions.stored", "Stored sessions"))
        panels = [
            (
                title,
                {n: self._facts.gauges[n, name].mean for n in self._facts.nodes if (n, name) in self._facts.gauges},
            )
            for name, title in wanted
        ]
        return self._drawing.lines("clients", "Clients and sessions", panels, formatting.short)

    def lengths(self) -> Plot | None:
        """How long connections lasted that ended."""
        found = {(node, "connections"): spread for node, spread in self._facts.length_lines.items()}
        return self._percentiles("lengths", "connections", found)

    def connects(self) -> Plot | None:
        """Connects a second, and storms."""
        lengths_s = self._facts.axis.lengths_s
        lines = {node: line / lengths_s for node, line in self._facts.connects.items()}
        ordered = {node: lines[node] for node in self._facts.nodes if node in lines}
        storms = together(self._facts.storm_lines.values()) if self._facts.storm_lines else None
        return self._drawing.lines(
            "connects",
            "Connects a second; storms are shaded",
            [("Connects a second", ordered)],
            formatting.short,
            storms,
        )

    def drops(self) -> Plot | None:
        """Messages dropped in each step, by reason."""
        return self._drawing.steps("drops", "Messages dropped", self._facts.drops, formatting.spaced)

    def refusals(self) -> Plot | None:
        """Refusals in each step, by rule or plugin."""
        return self._drawing.steps("refusals", "Refused", self._facts.refusals, formatting.name)

    def shadow(self) -> Plot | None:
        """What rules in the shadow would have refused."""
        lines = {
            rule: line
            for (metric, rule), line in self._facts.rules.items()
            if metric == "limiter.shadow_blocked" and np.nansum(line) > 0
        }
        # A packet may count under several rules: stacked, they would be more than there was.
        title = "Would have been refused, by rule"
        return self._drawing.steps("shadow", title, lines, formatting.name, stacked=False)

    def top_clients(self) -> Plot | None:
        """Who published most."""
        return self._drawing.bars("top-clients", "Clients that published most, bytes", self._facts.clients)

    def top_topics(self) -> Plot | None:
        """What most was published to."""
        return self._drawing.bars("top-topics", "Topics to which most was published, bytes", self._facts.topics)

    # Figures by node

    def _rates(self, name: str, received: str, sent: str, unit: str, write: Callable[[float], str]) -> Plot | None:
        lengths_s = self._facts.axis.lengths_s
        panels = []
        for counter, title in ((received, "Received"), (sent, "Sent")):
            lines = {
                node: self._facts.rates[node, counter] / lengths_s
                for node in self._facts.nodes
                if (node, counter) in self._facts.rates
            }
            panels.append((f"{title}, {unit}", lines))
        return self._drawing.lines(name, f"{name} received and sent", panels, write)

    def _percentiles(
        self,
        plot: str,
        name: str,
        found: Mapping[tuple[str, str], Spread],
        write: Callable[[float], str] = formatting.duration,
        log: bool = True,
    ) -> Plot | None:
        """Three panels, as percentiles of several nodes in one cover each other."""
        panels: list[tuple[str, dict[str, Line]]] = []
        for attribute, title in (("p50", "half were lower"), ("p95", "95 of 100 were lower"), ("p99", "99 of 100")):
            spreads = {node: found[node, name] for node in self._facts.nodes if (node, name) in found}
            panels.append(
                (
                    f"{formatting.name(name)}, {attribute}: {title}",
                    {node: getattr(spread, attribute) for node, spread in spreads.items()},
                )
            )
        return self._drawing.lines(plot, f"{name}: p50, p95 and p99", panels, write, height_in=1.3, log=log)
