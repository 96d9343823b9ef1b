"""Queues in memory that several brokers of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.queue import Entry, QueueSizes, QueueState, QueueStore, QueueWrite
from kinmqtt_spi.values import MessageId


class NodeQueueStore(QueueStore):
    """A shared store as one node sees it: entries of other nodes' clients expire there, because they count them."""

    is_shared = True

    def __init__(self, shared: MemoryQueueStore, is_home: Callable[[str], bool]) -> None:
        """``is_home`` tells whether the node is the home of a client id, or nobody is."""
        self.shared = shared
        self._is_home = is_home

    def apply(self, writes: Sequence[QueueWrite]) -> None:
        self.shared.apply(writes)

    def load(self, client_id: str) -> QueueState:
        return self.shared.load(client_id)

    def read(self, client_id: str, after: int, limit: int) -> Sequence[Entry]:
        return self.shared.read(client_id, after, limit)

    def known(self, client_id: str, ids: Set[MessageId]) -> Set[MessageId]:
        return self.shared.known(client_id, ids)

    def sizes(self, client_id: str) -> QueueSizes:
        return self.shared.sizes(client_id)

    def totals(self) -> QueueSizes:
        return self.shared.totals()

    def expire(self, now: float, limit: int) -> Sequence[tuple[str, Entry]]:
        return self.shared.expire_of(now, limit, self._is_home)
