"""Sessions in memory that several brokers of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from collections.abc import Sequence, Set

from attrs import evolve

from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import Claim, Claimant, DiscardSession, SessionPage, SessionWrite
from kinmqtt_spi.values import Maybe, NodeIdentity


class SharedSessionStore(MemorySessionStore):
    """Sessions with a home: the node that claimed them last, whether their client is connected or not.

    A node counts as alive until it is buried. All brokers use the same object.
    """

    is_shared = True

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, NodeIdentity] = {}
        self._buried: set[int] = set()
        self._offers: dict[str, int] = {}
        """By client id of an orphaned session: the uid of the node that it is assigned to."""

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        claim = super().claim(client_id, node, above)
        home = self._homes.get(client_id)
        self._homes[client_id] = node
        self._offers.pop(client_id, None)
        return evolve(claim, home_uid=None if home is None else home.uid)

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        home = self._homes.get(client_id)
        if home is not None and home.uid in self._buried and self._records.get(client_id) is not None:
            # What a dead node had claimed without a session belongs to nobody.
            record = self._records[client_id]
            if record.session is None:
                record.claimant = None
        return super().claim_for(client_id, node, claimant, above)

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        try:
            super().apply(writes)
        finally:
            for write in writes:
                if isinstance(write, DiscardSession) and write.client_id not in self._records:
                    self._homes.pop(write.client_id, None)
                    self._offers.pop(write.client_id, None)

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        page = super().iterate(cursor, limit)
        elsewhere = frozenset(
            stored.client_id for _, stored in page.sessions if self._is_home_alive(stored.client_id)
        )
        return evolve(page, elsewhere=elsewhere)

    def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        found = [client_id for client_id in self._by_serial.values() if self._homes.get(client_id, None) == node]
        return tuple(found[:limit])

    def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        for client_id in self._by_serial.values():
            if not self._is_home_alive(client_id) and self._offers.get(client_id, 0) in (0, *self._buried):
                if sum(uid == node.uid for uid in self._offers.values()) >= limit:
                    break
                self._offers[client_id] = node.uid
        return tuple(client_id for client_id, uid in self._offers.items() if uid == node.uid)

    def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        if self._offers.get(client_id) != node.uid or self._is_home_alive(client_id):
            return None
        return self.claim(client_id, node)

    def bury(self, node: NodeIdentity) -> None:
        self._buried.add(node.uid)

    def living(self, uids: Set[int]) -> Set[int]:
        return set(uids) - self._buried

    def _is_home_alive(self, client_id: str) -> bool:
        home = self._homes.get(client_id)
        return home is not None and home.uid not in self._buried
