"""Sessions in memory that several brokers of one process share, for tests and simulations of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Final

from attrs import evolve

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    DiscardSession,
    SessionPage,
    SessionStore,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import Maybe, NodeIdentity

_ALL: Final = 1 << 62


class SharedSessionStore(MemorySessionStore):
    """Sessions with a home: the node that claimed them last, whether their client is connected or not.

    A node counts as alive until it is buried, but for the time between :meth:`expire_lease` and :meth:`renew_lease`.
    Each broker uses a :meth:`view` of its own.
    """

    is_shared = True

    def __init__(self) -> None:
        super().__init__()
        self._homes: dict[str, NodeIdentity] = {}
        self._buried: set[int] = set()
        self._silent: set[int] = set()
        """The uids of the nodes whose leases have expired."""
        self._offers: dict[str, int] = {}
        """By client id of an orphaned session: the uid of the node that it is assigned to."""
        self._holders: dict[str, tuple[int, int]] = {}
        """By client id: the uid of the node that claimed it last, and the epoch of that claim, until its release."""
        self._calls: dict[int, Callable[[str, int], object]] = {}
        """By node uid: whom to notify of sessions that other nodes have claimed."""

    def view(self, node: NodeIdentity) -> NodeSessionStore:
        """Return the store as one node sees it."""
        return NodeSessionStore(self, node)

    def notify(self, node: NodeIdentity, call: Callable[[str, int], object]) -> None:
        """Register a node's :meth:`~kinmqtt_spi.services.session.SessionStore.on_taken_over`."""
        self._calls[node.uid] = call

    def home_of(self, client_id: str) -> int | None:
        """Return the uid of the node that a session is assigned to as an orphan, else of its last claimant."""
        offered = self._offers.get(client_id)
        home = self._homes.get(client_id)
        return offered if offered is not None else None if home is None else home.uid

    def is_home_alive(self, client_id: str) -> bool:
        """Tell whether a session has a home that was not buried, and whose lease has not expired."""
        home = self.home_of(client_id)
        return home is not None and home not in self._buried and home not in self._silent

    def epoch_of(self, client_id: str) -> int:
        """Return the epoch of the last claim of a client id; 0 if nothing is stored under it."""
        record = self._records.get(client_id)
        return 0 if record is None else record.epoch

    def expire_lease(self, node: NodeIdentity) -> None:
        """Count a node as gone that has not been heard of for long, as stores with leases do, until it is back."""
        self._silent.add(node.uid)

    def renew_lease(self, node: NodeIdentity) -> None:
        """Count a node as alive again, unless it was buried meanwhile."""
        self._silent.discard(node.uid)

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        if node.uid in self._buried:
            raise ServiceUnavailable(f"node {node.name} was declared dead: it can't claim {client_id!r}")
        claim = super().claim(client_id, node, above)
        home = self._homes.get(client_id)
        self._homes[client_id] = node
        self._offers.pop(client_id, None)
        uid, epoch = self._holders.get(client_id, (node.uid, 0))
        self._holders[client_id] = (node.uid, claim.epoch)
        if uid != node.uid and uid in self._calls:
            self._calls[uid](client_id, epoch)
        return evolve(claim, home_uid=None if home is None else home.uid)

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        record = self._records.get(client_id)
        if record is not None and record.session is None and not self.is_home_alive(client_id):
            # What a dead node had claimed without a session belongs to nobody.
            record.claimant = None
        return super().claim_for(client_id, node, claimant, above)

    def release(self, client_id: str, epoch: int) -> None:
        super().release(client_id, epoch)
        self._forget_empty(client_id)

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        try:
            super().apply(writes)
        finally:
            for write in writes:
                if isinstance(write, DiscardSession):
                    self._forget_empty(write.client_id)

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        page = super().iterate(cursor, limit)
        elsewhere = frozenset(stored.client_id for _, stored in page.sessions if self.is_home_alive(stored.client_id))
        return evolve(page, elsewhere=elsewhere)

    def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        return tuple(each for each in self._by_serial.values() if self.home_of(each) == node.uid)[:limit]

    def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        offered = [client_id for client_id, uid in self._offers.items() if uid == node.uid][:limit]
        if node.uid not in self._buried:
            lost = [client_id for client_id in self._by_serial.values() if not self.is_home_alive(client_id)]
            new = lost[: limit - len(offered)]
            self._offers.update(dict.fromkeys(new, node.uid))
            offered += new
        return tuple(offered)

    def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        return self.claim(client_id, node) if self._offers.get(client_id) == node.uid else None

    def bury(self, node: NodeIdentity) -> None:
        self._buried.add(node.uid)

    def is_stored(self, client_id: str) -> bool:
        record = self._records.get(client_id)
        return record is not None and record.session is not None

    def living(self, uids: Set[int]) -> Set[int]:
        return set(uids) - self._buried - self._silent

    def _forget_empty(self, client_id: str) -> None:
        """Forget the home of a client id without owner and session."""
        if client_id not in self._records:
            self._homes.pop(client_id, None)
            self._offers.pop(client_id, None)
            self._holders.pop(client_id, None)


class NodeSessionStore(SessionStore):
    """A shared store as one node sees it: sessions of other nodes are elsewhere, and are not this node's to end."""

    is_shared = True

    def __init__(self, shared: SharedSessionStore, node: NodeIdentity) -> None:
        self.shared = shared
        self.node = node

    def is_home(self, client_id: str) -> bool:
        """Tell whether this node is the home of a client id, or nobody is."""
        return self.shared.home_of(client_id) in (None, self.node.uid)

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        return self.shared.claim(client_id, node, above)

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        return self.shared.claim_for(client_id, node, claimant, above)

    def release(self, client_id: str, epoch: int) -> None:
        self.shared.release(client_id, epoch)

    def apply(self, writes: Sequence[SessionWrite]) -> None:
        self.shared.apply(writes)

    def expired(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        return self._own(self.shared.expired(now, _ALL), limit)

    def due_wills(self, now: float, limit: int) -> Sequence[tuple[int, StoredSession]]:
        return self._own(self.shared.due_wills(now, _ALL), limit)

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        page = self.shared.iterate(cursor, limit)
        return evolve(page, elsewhere=frozenset(each for each in page.elsewhere if not self.is_home(each)))

    def owned_by(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        return self.shared.owned_by(node, limit)

    def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        return self.shared.orphaned(node, limit)

    def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        return self.shared.adopt(client_id, node)

    def bury(self, node: NodeIdentity) -> None:
        self.shared.bury(node)

    def is_stored(self, client_id: str) -> bool:
        return self.shared.is_stored(client_id)

    def living(self, uids: Set[int]) -> Set[int]:
        return self.shared.living(uids)

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        self.shared.notify(self.node, call)

    def count(self) -> int:
        return self.shared.count()

    def _own(self, found: Sequence[tuple[int, StoredSession]], limit: int) -> list[tuple[int, StoredSession]]:
        return [each for each in found if self.is_home(each[1].client_id)][:limit]
