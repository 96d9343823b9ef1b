"""Local counters: what Redis stores for each client and in total, known without a round trip.

The answer to each write says what its client has afterwards. Changes by other brokers are seen at the next resync.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kinmqtt_redis_session.codec import version_of
from kinmqtt_redis_session.keys import SHARDS
from kinmqtt_spi.services.queue import QueueSizes

NOTHING: Final = QueueSizes()


class Counters:
    """Counters of sessions, queues and retained messages."""

    def __init__(self) -> None:
        self._sessions: set[str] = set()
        self._sizes: dict[str, QueueSizes] = {}
        self._queued = self._bytes = self._inflight = self._inbound = 0
        self._retained = [(0, 0)] * SHARDS
        self.newest_retained = 0.0
        """The latest time of any retained version, deletions included; seconds since 1970."""
        self.uncertain: set[str] = set()
        """Clients whose last writes failed without a definite answer: Redis may or may not have stored them."""

    def client(self, client_id: str, answer: Sequence[bytes | int]) -> None:
        """Store a script's answer: whether a session is stored, then queued, bytes, in flight and inbound."""
        stored, *numbers = (int(each) for each in answer[:5])
        if stored:
            self._sessions.add(client_id)
        else:
            self._sessions.discard(client_id)
        self._put(client_id, QueueSizes(*numbers))

    def forget(self, client_id: str) -> None:
        """Record that nothing is stored for a client."""
        self._sessions.discard(client_id)
        self._put(client_id, NOTHING)

    def clients(self) -> set[str]:
        """The clients for which anything is stored."""
        return self._sessions | self._sizes.keys()

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._sizes or client_id in self._sessions

    def sizes(self, client_id: str) -> QueueSizes:
        """The sizes of one queue."""
        return self._sizes.get(client_id, NOTHING)

    def totals(self) -> QueueSizes:
        """The sizes of all queues together."""
        return QueueSizes(self._queued, self._bytes, self._inflight, self._inbound)

    def has_session(self, client_id: str) -> bool:
        """Whether a session is stored for a client."""
        return client_id in self._sessions

    @property
    def sessions(self) -> int:
        """How many sessions are stored."""
        return len(self._sessions)

    def retained(self, shard: int, count: bytes | int, size_bytes: bytes | int, newest: bytes | None = None) -> None:
        """Store the counters of one shard of the retained messages, and its newest version."""
        self._retained[shard] = (int(count), int(size_bytes))
        if newest:
            self.newest_retained = max(self.newest_retained, version_of(newest).received_at)

    @property
    def retained_count(self) -> int:
        """The number of topics with a retained message."""
        return sum(count for count, _ in self._retained)

    @property
    def retained_bytes(self) -> int:
        """The bytes of all retained messages."""
        return sum(size for _, size in self._retained)

    def _put(self, client_id: str, sizes: QueueSizes) -> None:
        before = self._sizes.get(client_id, NOTHING)
        self._queued += sizes.queued - before.queued
        self._bytes += sizes.queued_bytes - before.queued_bytes
        self._inflight += sizes.inflight - before.inflight
        self._inbound += sizes.inbound - before.inbound
        if sizes == NOTHING:
            self._sizes.pop(client_id, None)
        else:
            self._sizes[client_id] = sizes
