"""What runners use of their surroundings, and what they count."""

from __future__ import annotations

from random import Random
from typing import Final

from attrs import frozen

from kinmqtt_spi.bridging.calls import Run
from kinmqtt_spi.services.metric import Metrics
from kinmqtt_spi.services.plugin import Clock, Log

SEND_BOUNDS_S: Final = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""The upper bounds of the histogram of sends, in seconds."""


@frozen(slots=True)
class Environment:
    """What is handed to every runner."""

    clock: Clock
    run: Run
    """Drives the awaitables of sinks and sources."""
    random: Random
    """Decides the jitter of pauses."""
    log: Log
    metrics: Metrics
    """The metrics of the plugin."""


class SinkCounters:
    """The counters of one sink."""

    __slots__ = ("again", "batches", "expired", "poisoned", "seconds", "sent")

    def __init__(self, metrics: Metrics, name: str) -> None:
        labels = {"name": label(name)}
        self.sent = metrics.counter("bridge.sent", "messages", labels)
        self.again = metrics.counter("bridge.again", "messages", labels)
        self.poisoned = metrics.counter("bridge.poisoned", "messages", labels)
        self.expired = metrics.counter("bridge.expired", "messages", labels)
        self.batches = metrics.counter("bridge.batches", "batches", labels)
        self.seconds = metrics.histogram("bridge.send_seconds", "seconds", SEND_BOUNDS_S, labels)


class SourceCounters:
    """The counters of one source."""

    __slots__ = ("published", "received", "refused")

    def __init__(self, metrics: Metrics, name: str) -> None:
        labels = {"name": label(name)}
        self.received = metrics.counter("source.received", "messages", labels)
        self.published = metrics.counter("source.published", "messages", labels)
        self.refused = metrics.counter("source.refused", "messages", labels)


def label(name: str) -> str:
    """Return the label of `plugin:name`: metrics have the plugin in a label of its own."""
    return name.rpartition(":")[2]
