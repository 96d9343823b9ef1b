"""The QoS 2 messages that were removed from queues a short time ago, in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import Set
from typing import Final

from kinmqtt_spi.services.queue import KNOWN_MESSAGES, KNOWN_S
from kinmqtt_spi.values import MessageId

_NONE: Final[frozenset[MessageId]] = frozenset()


class RemovedMessages:
    """Ids by client id, each for :data:`KNOWN_S` seconds of the time that :meth:`turn` gets.

    At most :data:`KNOWN_MESSAGES` of one client are remembered: the newest. A turn looks only at clients whose ids
    may be due.
    """

    __slots__ = ("_by_client", "_now", "_touched", "_turns")

    def __init__(self) -> None:
        self._now: float | None = None
        self._by_client: dict[str, dict[MessageId, float | None]] = {}
        """The ids of each client with the time of their removal, in that order; ``None`` before the first turn."""
        self._touched: set[str] = set()
        """Clients with ids that were added since the last turn."""
        self._turns: deque[tuple[float, set[str]]] = deque()

    def add(self, client_id: str, id: MessageId) -> None:
        """Remember a message that was removed now."""
        its = self._by_client.get(client_id)
        if its is None:
            its = self._by_client[client_id] = {}
        its.pop(id, None)
        its[id] = self._now
        if len(its) > KNOWN_MESSAGES:
            del its[next(iter(its))]
        self._touched.add(client_id)

    def known(self, client_id: str, ids: Set[MessageId]) -> set[MessageId]:
        """Return those of these messages that are remembered."""
        return {id for id in ids if id in self._by_client.get(client_id, _NONE)}

    def of(self, client_id: str) -> tuple[MessageId, ...]:
        """Return all messages of a client that are remembered, the oldest first."""
        return tuple(self._by_client.get(client_id, ()))

    def forget(self, client_id: str) -> None:
        """Forget all messages of a client."""
        self._by_client.pop(client_id, None)

    def turn(self, now: float) -> None:
        """Forget the messages that were removed :data:`KNOWN_S` seconds ago; ``now`` is a time in seconds."""
        if self._now is None:
            self._set_times(now)
            self._now = now
        added, self._now = self._now, now
        if self._touched:
            self._turns.append((added, self._touched))
            self._touched = set()
        while self._turns and now - self._turns[0][0] >= KNOWN_S:
            for client_id in self._turns.popleft()[1]:
                self._forget_due(client_id, now)

    def __len__(self) -> int:
        return sum(map(len, self._by_client.values()))

    def _forget_due(self, client_id: str, now: float) -> None:
        its = self._by_client.get(client_id, {})
        due = []
        for id, at in its.items():
            if at is not None and now - at < KNOWN_S:
                break
            due.append(id)
        for id in due:
            del its[id]
        if not its:
            self._by_client.pop(client_id, None)

    def _set_times(self, now: float) -> None:
        """Give a time to the messages that were removed before the first turn."""
        for its in self._by_client.values():
            for id, at in its.items():
                if at is None:
                    its[id] = now  # No key is added, so iterating is safe.
