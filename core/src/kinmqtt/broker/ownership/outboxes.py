"""Opens and discards the sessions of outboxes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt.broker.session.outbox_session import OutboxSession
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.claims import Claims
    from kinmqtt.broker.ownership.ending import Ending
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.runtime import Runtime


class OutboxSessions:
    """The sessions of outboxes, which are claimed like those of clients, and are never connected."""

    def __init__(self, runtime: Runtime, registry: Registry, claims: Claims, ending: Ending) -> None:
        self._runtime = runtime
        self._registry = registry
        self._claims = claims
        self._ending = ending
        self.when_added = registry.when_outbox_added
        self.stand_in = registry.stand_in

    @property
    def all(self) -> tuple[OutboxSession, ...]:
        """The outboxes that this node has."""
        return tuple([each for each in self._registry.outboxes.values() if not each.is_lost])

    async def open(self, client_id: str) -> OutboxSession:
        """Claim an outbox, or begin it; its stored messages are loaded.

        Another node that drained it meanwhile lets go of it. Raises
        :class:`~kinmqtt.broker.turn.recovery.CommitFailed` and
        :class:`~kinmqtt_spi.errors.ServiceUnavailable`.
        """
        runtime = self._runtime
        async with self._registry.locks.of(client_id):
            session = self._registry.outboxes.get(client_id)
            if session is not None and not session.is_lost:
                return session
            await self._claims.take(client_id, None)
            claim = await self._claims.claim(client_id, runtime.stores.session.claim)
            if claim is None:
                raise ServiceUnavailable(f"outbox {client_id} can't be claimed")
            found = await self._claims.present(client_id, claim)
            if found is None:
                found = self._registry.create_outbox(client_id, claim.epoch)
            await runtime.turn.committed()
            if not isinstance(found, OutboxSession) or self._registry.get(client_id) is not found:
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
            return found

    async def discard(self, session: OutboxSession) -> bool:
        """Delete an outbox with its messages; ``False`` where it has moved, or a store fails: try again later."""
        client_id = session.client_id
        async with self._registry.locks.of(client_id):
            if self._registry.get(client_id) is not session:
                return False
            try:
                await self._ending.end_persistent(session)
            except CommitFailed:
                return False
        return True
