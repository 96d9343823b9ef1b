"""Who publishes how much to which topic, added up between two samples; counted where the rights are remembered."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Final, Protocol

from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot

MOST_PAIRS: Final = 100_000
"""Clients and topics that are told of singly: some tens of megabytes. What further ones publish is told as a sum."""

MOST_NAME_BYTES: Final = 16 << 20
"""What their names may take: a client may choose names of 64 KB."""

AT_ONCE: Final = 1000
"""Connections and topics that are looked at in one reactor turn, in about a millisecond."""


class Counted(Protocol):
    """Where packets are counted until they are added up."""

    topic: str
    messages: int
    bytes: int


class Counts(Protocol):
    """What has such counts: a connection."""

    def count_routes(self) -> int:
        """Note them in the ledger; answers how many there were, also of those that have counted nothing."""


class TrafficLedger:
    """What clients have published since the last snapshot."""

    def __init__(self, active: bool, most_pairs: int = MOST_PAIRS, most_name_bytes: int = MOST_NAME_BYTES) -> None:
        """Where it is not ``active`` nobody wants to know."""
        self.active = active
        self._most_pairs = most_pairs
        self._most_name_bytes = most_name_bytes
        self._size = 0
        """Pairs,"""
        self._name_bytes = 0
        """and what their names take."""
        self._pairs: dict[str, dict[str, Traffic]] = {}
        """By client and topic, in the form in which they are handed over."""
        self._others = (0, 0)

    def note(self, client_id: str, counted: Counted) -> None:
        """Take over what has been counted; it begins anew."""
        if self.active:
            self.note_all(client_id, (counted,))
        else:
            counted.messages = counted.bytes = 0

    def note_all(self, client_id: str, counted: Iterable[Counted]) -> None:
        """The same of many of one client."""
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

    def taken(self, at: float, node: str) -> TrafficSnapshot:
        """What there was since the last time; it begins anew. ``at`` in seconds since the epoch."""
        pairs, self._pairs = self._pairs, {}
        others, self._others = self._others, (0, 0)
        self._size = self._name_bytes = 0
        each = tuple(chain.from_iterable(of_client.values() for of_client in pairs.values()))
        return TrafficSnapshot(at, node, each, *others)


class TrafficSampling:
    """Adds up what all connections have counted, some of them in each reactor turn, and then tells of it.

    What comes meanwhile is told with it, or the next time; each packet once.
    """

    def __init__(self, call_soon: Callable[[Callable[[], object]], object], tell: Callable[[float], object]) -> None:
        """``call_soon`` makes a call in the next reactor turn; ``tell`` is handed the moment of the sample."""
        self._call_soon = call_soon
        self._tell = tell
        self._left: list[Counts] = []
        self._at: float | None = None
        """The moment of the sample that is under way, in seconds since the epoch."""
        self._is_scheduled = False

    def begin(self, at: float, connections: Iterable[Counts]) -> None:
        """A sample of this moment. One that is still under way is brought to its end before."""
        self.finish()
        self._at = at
        self._left = list(connections)
        self._go_on()

    def finish(self) -> None:
        """Bring the one that is under way to its end, at once."""
        left, self._left = self._left, []
        for each in left:
            each.count_routes()
        at, self._at = self._at, None
        if at is not None:
            self._tell(at)

    def _go_on(self) -> None:
        left = self._left
        looked_at = 0
        while left and looked_at < AT_ONCE:
            looked_at += 1 + left.pop().count_routes()
        if not left:
            self.finish()
        elif not self._is_scheduled:
            self._is_scheduled = True
            self._call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._is_scheduled = False
        self._go_on()


def _memory_bytes(name: str) -> int:
    return len(name) if name.isascii() else 4 * len(name)
