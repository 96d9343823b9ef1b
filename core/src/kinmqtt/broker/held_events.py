"""Bounds of the events that groups hold, and the metrics of their groups."""

from __future__ import annotations

from functools import partial

from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.event import EventLog, HoldBounds


def bound_events(log: EventLog, bounds: HoldBounds, metrics: MetricRegistry) -> None:
    """Set the bounds of an event log, and register ``events.lost`` and each group's ``events.lag``."""
    lost = metrics.counter("events.lost", "events")

    def count_lost(count: int) -> None:
        lost.value += count

    def measure(group: str) -> None:
        metrics.gauge("events.lag", "events", partial(log.lag, group), {"group": group})

    log.bound(bounds, count_lost, measure)
