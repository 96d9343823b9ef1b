"""Sums up, between two samples, how much each client publishes to each topic; counted in the connections' routes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot

MAX_PAIRS: Final = 100_000
"""The most pairs of client and topic reported singly (some tens of megabytes); the others are reported as a sum."""

MAX_NAME_BYTES: Final = 16 << 20
"""The most bytes for their names: a client may choose names of 64 KB."""

AT_ONCE: Final = 1000
"""The connections and topics processed in one reactor turn, in about a millisecond."""


class Counted(Protocol):
    """A counter of packets that is collected into the ledger."""

    topic: str
    messages: int
    bytes: int


class Counts(Protocol):
    """An owner of counters: a connection."""

    def count_routes(self) -> int:
        """Add its counters to the ledger; returns their number, including those at 0."""


class TrafficLedger:
    """The messages and bytes that clients have published since the last snapshot."""

    def __init__(self, active: bool, max_pairs: int = MAX_PAIRS, max_name_bytes: int = MAX_NAME_BYTES) -> None:
        """``active``: whether a plugin uses the samples; otherwise nothing is recorded."""
        self.active = active
        self._most_pairs = max_pairs
        self._most_name_bytes = max_name_bytes
        self._size = 0
        """The number of pairs."""
        self._name_bytes = 0
        """The size of their names."""
        self._pairs: dict[str, dict[str, Traffic]] = {}
        """By client and topic."""
        self._others = (0, 0)

    def add(self, client_id: str, counted: Counted) -> None:
        """Add one counter of a client, and reset it."""
        if self.active:
            self.add_all(client_id, (counted,))
        else:
            counted.messages = counted.bytes = 0

    def add_all(self, client_id: str, counted: Iterable[Counted]) -> None:
        """Add many counters of a client, and reset them."""
        pairs = self._pairs.get(client_id)
        client_bytes = _memory_bytes(client_id)
        for each in counted:
            messages = each.messages
            if not messages:
                continue
            size = each.bytes
            each.messages = each.bytes = 0
            topic = each.topic
            before = None if pairs is None else pairs.get(topic)
            if before is None:
                name_bytes = self._name_bytes + client_bytes + _memory_bytes(topic)
                if self._size >= self._most_pairs or name_bytes > self._most_name_bytes:
                    self._others = (self._others[0] + messages, self._others[1] + size)
                    continue
                self._size += 1
                self._name_bytes = name_bytes
            else:
                messages += before.messages
                size += before.bytes
            if pairs is None:
                pairs = self._pairs[client_id] = {}
            pairs[topic] = Traffic(client_id, topic, messages, size)

    def take_snapshot(self, at: float, node: str) -> TrafficSnapshot:
        """Return the traffic since the last snapshot, and reset it; ``at`` in seconds since the epoch."""
        pairs, self._pairs = self._pairs, {}
        others, self._others = self._others, (0, 0)
        self._size = self._name_bytes = 0
        each = tuple(chain.from_iterable(of_client.values() for of_client in pairs.values()))
        return TrafficSnapshot(at, node, each, *others)


class TrafficSampling:
    """Collects the counters of all connections, some in each reactor turn, and then reports the sample.

    Packets received meanwhile are in this sample or in the next; each is counted once.
    """

    def __init__(
        self, call_soon: Callable[[Callable[[], object]], object], report: Callable[[float], object]
    ) -> None:
        """``call_soon`` makes a call in the next reactor turn; ``report`` is called with the time of the sample."""
        self._call_soon = call_soon
        self._report = report
        self._remaining: list[Counts] = []
        self._at: float | None = None
        """The time of the current sample, in seconds since the epoch."""
        self._is_scheduled = False

    def begin(self, at: float, connections: Iterable[Counts]) -> None:
        """Start a sample of this time; finish the previous one first."""
        self.finish()
        self._at = at
        self._remaining = list(connections)
        self._continue()

    def finish(self) -> None:
        """Finish the current sample at once, if there is one."""
        remaining, self._remaining = self._remaining, []
        for each in remaining:
            each.count_routes()
        at, self._at = self._at, None
        if at is not None:
            self._report(at)

    def _continue(self) -> None:
        remaining = self._remaining
        processed = 0
        while remaining and processed < AT_ONCE:
            processed += 1 + remaining.pop().count_routes()
        if not remaining:
            self.finish()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._continue()


def _memory_bytes(name: str) -> int:
    return len(name) if name.isascii() else 4 * len(name)
