"""Concurrency: how much may be in use at the same time."""

from __future__ import annotations

from typing import Final

from kinmqtt_sentinel_limiter._base_rule import BaseRule
from kinmqtt_sentinel_limiter._cells import REFUSED, Cell

STARVATION_S: Final = 1.0
"""How long a large amount may be refused for lack of room before room is reserved for it, and how long the
reservation lasts."""


class ConcurrencyCell(Cell):
    """Grade ``concurrency``: a limit of units in use at the same time, which are released one by one.

    An amount above the limit passes when nothing else is in use. If small amounts starve a large one for
    :data:`STARVATION_S`, the room that it needs is reserved for the same time.
    """

    __slots__ = ("count", "in_use", "largest", "waits_since")

    def __init__(self, rule: BaseRule, count: float) -> None:
        super().__init__(rule)
        self.count = int(count)
        self.in_use = 0
        self.largest = 0
        """The largest amount refused since an amount of that size last passed; 0 for none."""
        self.waits_since = 0.0

    def forget(self) -> None:
        super().forget()
        self.count, self.in_use = 0, 1 << 60

    def take(self, amount: int, now: float) -> float:
        in_use = self.in_use + amount
        if self.largest and self._must_yield(amount, now):
            return REFUSED
        if in_use > self.count and self.in_use:
            self._wait(amount, now)
            return REFUSED
        self.in_use = in_use
        return 0.0

    def undo(self, amount: int) -> None:
        self.in_use = max(self.in_use - amount, 0)

    def take_anyway(self, amount: int) -> bool:
        self.in_use += amount
        return True

    def release(self, amount: int, now: float) -> None:
        # Amounts granted before the rule existed are released too.
        self.in_use = max(self.in_use - amount, 0)

    @property
    def held(self) -> bool:
        return self.in_use > 0

    def is_full(self, now: float) -> bool:
        return self.in_use >= self.count

    def spent(self, now: float) -> float:
        return float(self.in_use)

    def _wait(self, amount: int, now: float) -> None:
        if amount > 1 and amount > self.largest:
            if not self.largest:
                self.waits_since = now
            self.largest = amount

    def _must_yield(self, amount: int, now: float) -> bool:
        """Whether the amount must leave room for a larger one; forgets a larger one that does not come again."""
        waited_s = now - self.waits_since
        if waited_s > 2 * STARVATION_S or (amount >= self.largest and self._has_room(amount)):
            self.largest = 0
            return False
        kept = min(self.largest, self.count)
        return waited_s > STARVATION_S and amount < self.largest and self.in_use + kept + amount > self.count

    def _has_room(self, amount: int) -> bool:
        return self.in_use + amount <= self.count or not self.in_use


class ClientsCell(ConcurrencyCell):
    """Grade ``concurrency`` of ``connect``: counts clients, each of which may have several connections."""

    __slots__ = ("connections",)

    def __init__(self, rule: BaseRule, count: float) -> None:
        super().__init__(rule, count)
        self.connections: dict[str, int] = {}
        """The number of connections by client id."""


class ClientCell(Cell):
    """One client's view of a :class:`ClientsCell`, made for each request.

    A client that connects again while its old connection is still open replaces that connection: it counts once, so
    an exhausted rule does not lock it out.
    """

    __slots__ = ("_clients", "_id")

    def __init__(self, rule: BaseRule, clients: ClientsCell, client_id: str) -> None:
        super().__init__(rule)
        self._clients = clients
        self._id = client_id

    def take(self, amount: int, now: float) -> float:
        clients = self._clients
        if self._id not in clients.connections and clients.take(1, now):
            return REFUSED
        self._count(amount)
        return 0.0

    def undo(self, amount: int) -> None:
        self.release(amount, 0.0)

    def take_anyway(self, amount: int) -> bool:
        if self._id not in self._clients.connections:
            self._clients.take_anyway(1)
        self._count(amount)
        return True

    def release(self, amount: int, now: float) -> None:
        connections = self._clients.connections
        if self._id not in connections:
            return
        connections[self._id] -= amount
        if connections[self._id] <= 0:
            del connections[self._id]
            self._clients.release(1, now)

    def _count(self, amount: int) -> None:
        connections = self._clients.connections
        connections[self._id] = connections.get(self._id, 0) + amount
