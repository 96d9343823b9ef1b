"""Adopts stored sessions: after a start, and when the node that held them is gone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.locks import Lock
from kinmqtt.broker.ownership.claims import release_of
from kinmqtt.broker.ownership.registry import SESSIONS_AT_ONCE
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.session import Claim, StoredSession

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.claims import Claims
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.reload import Reload
    from kinmqtt.broker.ownership.subscription_removal import SubscriptionRemoval
    from kinmqtt.broker.ownership.wills import Wills
    from kinmqtt.broker.runtime import Runtime

log = Logger("kinmqtt.sessions")


class SessionRecovery:
    """Adopts stored sessions that no living node holds."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        wills: Wills,
        removal: SubscriptionRemoval,
        reload: Reload,
        claims: Claims,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._wills = wills
        self._removal = removal
        self._reload = reload
        self._claims = claims
        self._adopting = Lock()

    async def restore(self) -> int:
        """Adopt every stored session that no other node holds, after a start; returns their number.

        For sessions that were connected when their node stopped, expiry and will delay count from now on.
        """
        runtime = self._runtime
        cursor: object = None
        restored = 0
        # Nodes that start at the same time adopt different sessions.
        while adopted := await self._adopt_orphaned(patient=False):
            restored += adopted
        while True:
            page = await resolve(runtime.stores.session.iterate(cursor, SESSIONS_AT_ONCE))
            for _epoch, stored in page.sessions:
                if stored.client_id not in page.elsewhere:
                    restored += await self._restore(stored)
            cursor = page.cursor
            if cursor is None:
                return restored

    async def _restore(self, stored: StoredSession) -> bool:
        """Adopt one stored session; ``False`` if it is here already, or has ended."""
        runtime, client_id = self._runtime, stored.client_id
        # In a cluster, other nodes' sessions are adopted at the same time.
        async with self._registry.locks.of(client_id):
            if self._registry.get(client_id) is not None:
                return False
            now = runtime.clock.now()
            claim = await resolve(runtime.stores.session.claim(client_id, runtime.node))
            if claim.session is None:
                return False
            self._registry.adopt(claim, claim.session, await resolve(runtime.stores.queue.load(client_id)))
            self._registry.write(release_of(stored, claim.epoch, now))
            return True

    async def adopt_orphaned(self, now: float) -> bool:
        """Adopt orphaned sessions, whose nodes are gone; ``False`` if that failed: the store returns them again.

        A second call waits for the first: when it returns, what the store named to either is adopted.
        """
        await self._adopting.acquire()
        try:
            adopted = await self._adopt_orphaned(patient=True)
        except (CommitFailed, ServiceUnavailable):
            return False
        finally:
            self._adopting.release()
        if adopted:
            log.info("adopted {count} sessions of nodes that are gone", count=adopted)
        return True

    async def _adopt_orphaned(self, patient: bool) -> int:
        """Adopt the orphaned sessions that the store names, concurrently; returns their number."""
        runtime = self._runtime
        names = await resolve(runtime.stores.session.orphaned(runtime.node, SESSIONS_AT_ONCE))
        attempts: list[Deferred[Any]] = [run(self._adopt(name, patient)) for name in names]
        results = await DeferredList(attempts, consumeErrors=True)
        for _, result in results:
            if isinstance(result, Failure):
                result.raiseException()
        return sum(result is True for _, result in results)

    async def _adopt(self, client_id: str, patient: bool) -> bool:
        """Adopt one orphaned session; ``False`` where its client has come back meanwhile."""
        async with self._registry.locks.of(client_id):
            await self._wills.wait_for_attempt(client_id)
            await self._removal.wait_until_done(client_id)
            claim = await self._claims.claim(client_id, self._runtime.stores.session.adopt)
            if claim is None:
                return False
            try:
                await self._replace(claim, client_id, patient)
            finally:
                session = self._registry.get(client_id)
                if session is None or session.connection is None or session.epoch != claim.epoch:
                    self._claims.release(client_id, claim)
            return True

    async def _replace(self, claim: Claim, client_id: str, patient: bool) -> None:
        """Replace this node's copy of a session by the one that a claim has found."""
        session = self._registry.get(client_id)
        if session is not None and session.epoch == claim.epoch:
            return  # The store took this node for gone, but no other node has claimed the session.
        state = None if claim.session is None else await self._reload.load(client_id, claim.epoch, patient)
        session = self._registry.get(client_id)
        if session is not None:
            self._registry.drop_copy(session)
        if claim.session is not None and state is not None:
            self._registry.adopt(claim, claim.session, state)
