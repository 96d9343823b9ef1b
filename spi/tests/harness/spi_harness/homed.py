"""A session store that several nodes share, in memory: a session has its home at the node that claimed it last."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from typing import Any

from attrs import evolve

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.services.session import Claim, Claimant, SessionPage
from kinmqtt_spi.testing.build import HERE
from kinmqtt_spi.values import Maybe, NodeIdentity


class HomedSessionStore(MemorySessionStore):
    """As the node ``HERE`` sees it."""

    def __init__(self) -> None:
        super().__init__()
        self.homes: dict[str, NodeIdentity] = {}
        self.handed: dict[str, NodeIdentity] = {}
        """To whom a session was handed that nobody has claimed since."""
        self.gone: set[NodeIdentity] = set()
        self.held: dict[str, int] = {}
        """Under which epochs this node has claimed."""
        self.taken: Callable[[str, int], object] = lambda client_id, epoch: None

    def on_taken_over(self, call: Callable[[str, int], object]) -> None:
        self.taken = call

    def claim(self, client_id: str, node: NodeIdentity, above: int = 0) -> Claim:
        if node in self.gone:
            raise ServiceUnavailable("it was declared dead")
        self.homes[client_id] = node
        self.handed.pop(client_id, None)
        claim = super().claim(client_id, node, above)
        held = self.held.pop(client_id, None)
        if node == HERE:
            self.held[client_id] = claim.epoch
        elif held is not None:
            self.taken(client_id, held)
        return claim

    def claim_for(
        self, client_id: str, node: NodeIdentity, claimant: Claimant, above: int = 0
    ) -> Maybe[Claim | None]:
        record = self._records.get(client_id)
        if record is not None and self.homes.get(client_id) in self.gone:
            record.claimant = None
        return super().claim_for(client_id, node, claimant, above)

    def bury(self, node: NodeIdentity) -> None:
        self.gone.add(node)

    def is_stored(self, client_id: str) -> bool:
        record = self._records.get(client_id)
        return record is not None and record.session is not None

    def living(self, uids: Set[int]) -> Set[int]:
        return set(uids) - {node.uid for node in self.gone}

    def adopt(self, client_id: str, node: NodeIdentity) -> Claim | None:
        return self.claim(client_id, node) if self.handed.get(client_id) == node else None

    def iterate(self, cursor: object = None, limit: int = 1000) -> SessionPage:
        page = super().iterate(cursor, limit)
        names = [stored.client_id for _, stored in page.sessions]
        return evolve(page, elsewhere=frozenset(name for name in names if self.is_elsewhere(name)))

    def is_elsewhere(self, client_id: str) -> bool:
        """Whether another node holds a session, and lives."""
        home = self.homes.get(client_id, HERE)
        return home != HERE and home not in self.gone

    def orphaned(self, node: NodeIdentity, limit: int) -> Sequence[str]:
        stored = [session.client_id for _, session in super().iterate(None, 1_000_000).sessions]
        named = [name for name in stored if self.handed.get(name) == node]
        named += [name for name in stored if self.homes.get(name) in self.gone]
        for name in named[:limit]:
            self.homes[name] = self.handed[name] = node
        return tuple(named[:limit])


class Shared:
    """What a suite over such a store overrides."""

    can_lose_nodes = True

    def lost(self, store: Any, node: NodeIdentity, drive: Any) -> None:
        store.gone.add(node)
