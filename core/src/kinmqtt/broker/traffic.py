"""Who publishes how much to which topic, added up between two samples; counted where the rights are remembered."""

from __future__ import annotations

from typing import Final, Protocol

from kinmqtt_spi.services.metric import Traffic, TrafficSnapshot

MOST_PAIRS: Final = 100_000
"""Clients and topics that are told of singly: some tens of megabytes. What further ones publish is told as a sum."""

MOST_NAME_BYTES: Final = 16 << 20
"""What their names may take: a client may choose names of 64 KB."""


class Counted(Protocol):
    """Where packets are counted until they are added up."""

    topic: str
    messages: int
    bytes: int


class TrafficLedger:
    """What clients have published since the last snapshot."""

    def __init__(self, active: bool, most_pairs: int = MOST_PAIRS, most_name_bytes: int = MOST_NAME_BYTES) -> None:
        """Where it is not ``active`` nobody wants to know."""
        self.active = active
        self._most_pairs = most_pairs
        self._most_name_bytes = most_name_bytes
        self._name_bytes = 0
        self._pairs: dict[tuple[str, str], tuple[int, int]] = {}
        self._others = (0, 0)

    def note(self, client_id: str, counted: Counted) -> None:
        """Take over what has been counted; it begins anew."""
        if not counted.messages:
            return
        messages, size = counted.messages, counted.bytes
        counted.messages = counted.bytes = 0
        if not self.active:
            return
        key = (client_id, counted.topic)
        before = self._pairs.get(key)
        if before is None:
            name_bytes = self._name_bytes + _memory_bytes(client_id) + _memory_bytes(counted.topic)
            if len(self._pairs) >= self._most_pairs or name_bytes > self._most_name_bytes:
                self._others = (self._others[0] + messages, self._others[1] + size)
                return
            self._name_bytes = name_bytes
            before = (0, 0)
        self._pairs[key] = (before[0] + messages, before[1] + size)

    def taken(self, at: float, node: str) -> TrafficSnapshot:
        """What there was since the last time; it begins anew. ``at`` in seconds since the epoch."""
        pairs, self._pairs = self._pairs, {}
        others, self._others = self._others, (0, 0)
        self._name_bytes = 0
        each = tuple(Traffic(client_id, topic, *counts) for (client_id, topic), counts in pairs.items())
        return TrafficSnapshot(at, node, each, *others)


def _memory_bytes(name: str) -> int:
    return len(name) if name.isascii() else 4 * len(name)
