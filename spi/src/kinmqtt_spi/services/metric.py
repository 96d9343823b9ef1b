"""Metrics: plain numbers on the hot path, read on demand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple, TypeAlias

from attrs import frozen

from kinmqtt_spi.values import NO_ATTRIBUTES


class Counter:
    """A number that only increases. ``counter.value += n`` is the fast way to count."""

    __slots__ = ("labels", "name", "unit", "value")

    def __init__(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> None:
        self.name = name
        self.unit = unit
        self.labels = labels
        self.value = 0


class Gauge:
    """A number that is read on demand."""

    __slots__ = ("labels", "name", "read", "unit")

    def __init__(
        self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> None:
        self.name = name
        self.unit = unit
        self.read = read
        self.labels = labels


class Histogram:
    """Counts observations by upper bound; the last bucket has none."""

    __slots__ = ("bounds", "counts", "labels", "name", "sum", "unit")

    def __init__(
        self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> None:
        if not bounds or list(bounds) != sorted(set(bounds)):
            raise ValueError(f"the bounds of {name} must increase")
        self.name = name
        self.unit = unit
        self.labels = labels
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count one observation, in the histogram's unit. A value equal to a bound is within it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Metrics(ABC):
    """Makes a plugin's metrics. The same name and labels return the same object.

    Names are lower case with dots (``queue.dropped``); units are words (``messages``, ``bytes``, ``seconds``). A name
    that the same plugin uses with another unit or type raises ``ValueError``.
    """

    @abstractmethod
    def counter(self, name: str, unit: str, labels: Mapping[str, str] = NO_ATTRIBUTES) -> Counter:
        """Return a counter."""

    @abstractmethod
    def gauge(
        self, name: str, unit: str, read: Callable[[], float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Gauge:
        """Return a gauge. ``read`` is called on the reactor thread and must not block."""

    @abstractmethod
    def histogram(
        self, name: str, unit: str, bounds: Sequence[float], labels: Mapping[str, str] = NO_ATTRIBUTES
    ) -> Histogram:
        """Return a histogram with the given upper bounds."""


@frozen(slots=True)
class CounterSample:
    """A counter's value."""

    name: str
    unit: str
    labels: Mapping[str, str]
    value: int


@frozen(slots=True)
class GaugeSample:
    """A gauge's value."""

    name: str
    unit: str
    labels: Mapping[str, str]
    value: float


@frozen(slots=True)
class HistogramSample:
    """A histogram's buckets. ``counts`` has one more than ``bounds`` and is not cumulative."""

    name: str
    unit: str
    labels: Mapping[str, str]
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


Sample: TypeAlias = CounterSample | GaugeSample | HistogramSample


@frozen(slots=True)
class Snapshot:
    """All metrics at one moment."""

    at: float
    """Seconds since the epoch, UTC."""
    node: str
    samples: tuple[Sample, ...]


class Traffic(NamedTuple):
    """One client's traffic to one topic: the number of PUBLISH packets and their size in bytes."""

    client_id: str
    topic: str
    messages: int
    bytes: int


@frozen(slots=True)
class TrafficSnapshot:
    """Traffic by client and topic since the last snapshot, or since the start.

    Packets that were denied by an authorizer, dropped for lack of memory, or refused by an intercepting plugin are
    counted. Packets that a limiter stopped, and repeated QoS 2 packets, are not.
    """

    at: float
    """Seconds since the epoch, UTC."""
    node: str
    pairs: tuple[Traffic, ...]
    """The traffic of each client and topic, unordered."""
    others_messages: int = 0
    """Packets of further pairs, which were too many to report one by one."""
    others_bytes: int = 0


class SysScope(Enum):
    """What a ``$SYS`` topic tells of."""

    NODE = "node"
    """Of one node. In a cluster every node also shows it for each node: ``$SYS/example/count`` of node ``n1`` is
    ``$SYS/brokers/n1/example/count``."""
    CLUSTER = "cluster"
    """Of the whole cluster, the same on every node."""


@frozen(slots=True)
class SysTopic:
    """A topic below ``$SYS/`` and how to read its payload."""

    topic: str
    read: Callable[[], str]
    on_change_only: bool = False
    """Publish only if the payload differs from the last one; otherwise at every interval."""
    scope: SysScope = SysScope.NODE
