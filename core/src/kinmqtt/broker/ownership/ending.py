"""Ends sessions: publishes the will, redistributes messages, and deletes the session from the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kinmqtt.broker.ownership.subscription_removal import needs_slices
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt_spi.services.queue import Purge
from kinmqtt_spi.services.session import DiscardSession

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.redistribution import Redistribution
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.reload import Reload
    from kinmqtt.broker.ownership.subscription_removal import SubscriptionRemoval
    from kinmqtt.broker.ownership.wills import Wills
    from kinmqtt.broker.routing.publisher import MessagePublisher
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.cluster import ClusterBackend


class Ending:
    """Ends sessions."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        cluster: ClusterBackend,
        publisher: MessagePublisher,
        wills: Wills,
        redistribution: Redistribution,
        removal: SubscriptionRemoval,
        reload: Reload,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._cluster = cluster
        self._publisher = publisher
        self._wills = wills
        self._redistribution = redistribution
        self._removal = removal
        self._reload = reload

    def end(self, session: Session) -> None:
        """End a non-persistent session; its will, if it still has one, is due (MQTT-3.1.2-8)."""
        if needs_slices(session):
            # Until its subscriptions are removed, nothing is delivered to it because it is not in the registry.
            self._registry.remove(session)
        self._removal.remove(session)
        self._wills.publish(session)
        self._registry.remove(session)
        session.end()
        self._runtime.stores.session.release(session.client_id, session.epoch)
        self._cluster.release(session.client_id, session.epoch)
        self._notify(session, expired=False)

    async def end_persistent(self, session: Session, expired: bool = False) -> None:
        """End a persistent session: its shared subscriptions' messages go to others, its will is published.

        The caller holds the lock of the client id. Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed` where a
        store fails; the session then continues as before.
        """
        session.ending = True
        try:
            await self._end_persistent(session, expired)
        finally:
            session.ending = False

    async def end_offline(self, session: Session, expired: bool = False) -> bool:
        """End a persistent session that has no connection; ``False`` where a store fails and a retry is needed."""
        client_id = session.client_id
        async with self._registry.locks.of(client_id):
            try:
                if self._registry.offline(client_id, session.epoch) is session:
                    await self.end_persistent(session, expired)
                    if expired:
                        self._runtime.statistics.sessions_expired.value += 1
            except CommitFailed:
                return False
        return True

    async def _end_persistent(self, session: Session, expired: bool) -> None:
        client_id = session.client_id
        await self._wills.wait_for_attempt(client_id)
        will = session.will
        message = None if will is None else await self._wills.message_of(session.client, will)
        if self._redistribution.redistribute_memory(session, ends=True):
            await self._runtime.turn.committed()
        await self._redistribution.redistribute_stored(session, ends=True)
        if self._registry.get(client_id) is not session:
            return  # Another node owns it now.
        # Nothing may be queued for it from now on: the store would hold messages added after the purge for ever.
        self._registry.withdraw(session)
        try:
            if message is None:
                self._discard(session)
                await self._runtime.turn.committed()
            else:
                await self._publisher.publish_with(message, lambda: self._discard(session))
        except BaseException:
            self._registry.reinstate(session)
            self._reload.start(session)
            raise
        session.will = None
        session.end()
        self._cluster.release(client_id, session.epoch)
        self._notify(session, expired)
        await self._removal.remove_in_slices(session)

    def _discard(self, session: Session) -> None:
        """Delete the session from both stores, in one transaction with its will."""
        batch = self._runtime.turn.batch
        purge = Purge(session.client_id, session.epoch)
        discard = DiscardSession(session.client_id, session.epoch)
        batch.queue.append(purge)
        batch.sessions.append(discard)
        batch.tied |= {purge, discard}

    def _notify(self, session: Session, expired: bool) -> None:
        if session.is_outbox:
            return
        hooks = self._runtime.hooks
        notice: Any = hooks.session_expired if expired else hooks.session_discarded
        if notice.active:
            notice(session.client_id)
