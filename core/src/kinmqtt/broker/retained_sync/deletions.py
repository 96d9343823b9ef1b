"""Deletions that are remembered, so that an older message which arrives late does not come back."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from kinmqtt_spi.properties import text_bytes
from kinmqtt_spi.services.retain import RetainVersion

MAX_DELETIONS: Final = 20_000
"""The most deletions that are remembered. Twice as many as the stores in memory remember: what the index has
forgotten, the store should have forgotten, too."""

MAX_DELETION_BYTES: Final = 8 << 20
"""The limit of the sizes of their topics."""


class Deletions:
    """The newest deletions, by topic. Above a bound the one with the oldest version is forgotten.

    By version, and not by their order here: nodes that have seen the same deletions remember the same ones.
    """

    __slots__ = ("_bytes", "_heap", "_max", "_max_bytes", "_versions")

    def __init__(self, most: int = MAX_DELETIONS, most_bytes: int = MAX_DELETION_BYTES) -> None:
        self._max = most
        self._max_bytes = most_bytes
        self._versions: dict[str, RetainVersion] = {}
        self._heap: list[tuple[RetainVersion, str]] = []
        """All of them, and some that are none any more; the oldest first."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._versions)

    def __contains__(self, topic: str) -> bool:
        return topic in self._versions

    def add(self, topic: str, version: RetainVersion) -> None:
        """Remember a deletion; it replaces that of the same topic."""
        if topic not in self._versions:
            self._bytes += text_bytes(topic)
        self._versions[topic] = version
        if len(self._heap) > 2 * len(self._versions) + 64:
            self._heap = [(version, topic) for topic, version in self._versions.items()]
            heapify(self._heap)
        else:
            heappush(self._heap, (version, topic))

    def discard(self, topic: str) -> None:
        """Forget the deletion of a topic, if it is remembered."""
        if self._versions.pop(topic, None) is not None:
            self._bytes -= text_bytes(topic)

    def pop_excess(self, before: float) -> str | None:
        """Forget the oldest deletion if there are too many, or if it is from ``before``, in seconds since the epoch.

        Returns its topic; ``None`` if there is none to forget.
        """
        while self._heap:
            version, topic = self._heap[0]
            if self._versions.get(topic) != version:
                heappop(self._heap)
                continue
            is_full = len(self._versions) > self._max or self._bytes > self._max_bytes
            if not is_full and version.received_at >= before:
                return None
            heappop(self._heap)
            self.discard(topic)
            return topic
        return None
