"""Claims the session of a CONNECT.

Claims of one client id are served one after the other. Each takes the session from the previous connection. Its epoch
fences later writes of that connection: the stores refuse an older epoch.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import TYPE_CHECKING

from kinmqtt.broker.ownership.capacity import Capacity
from kinmqtt.broker.ownership.client_id_reuse import ClientIdReuse, SessionOfAnotherUser
from kinmqtt.broker.session.session import expiry_moment
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.session import Claim, ReleaseSession, StoredSession
from kinmqtt_spi.values import Client, Maybe, NodeIdentity

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.ending import Ending
    from kinmqtt.broker.ownership.leaving import Leaving
    from kinmqtt.broker.ownership.opening import Opening
    from kinmqtt.broker.ownership.registry import Registry
    from kinmqtt.broker.ownership.reload import Reload
    from kinmqtt.broker.ownership.subscription_removal import SubscriptionRemoval
    from kinmqtt.broker.ownership.wills import Wills
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.cluster import ClusterBackend


class Claims:
    """Claims client ids in the session store, and opens the sessions that clients request."""

    def __init__(
        self,
        runtime: Runtime,
        registry: Registry,
        cluster: ClusterBackend,
        wills: Wills,
        removal: SubscriptionRemoval,
        reload: Reload,
        ending: Ending,
        leaving: Leaving,
    ) -> None:
        self._runtime = runtime
        self._registry = registry
        self._cluster = cluster
        self._wills = wills
        self._removal = removal
        self._reload = reload
        self._ending = ending
        self._leaving = leaving
        self.reuse = ClientIdReuse(runtime)
        self._capacity = Capacity(runtime)
        self._coming: dict[str, int] = {}
        """By client id of a session that comes here: the uid of the node that had it."""

    @property
    def coming_from(self) -> Set[int]:
        """The uids of nodes whose sessions come here.

        In the store they belong to this node already, but their subscriptions are not known here yet.
        """
        return set(self._coming.values())

    async def open(self, opening: Opening, above: int = 0) -> tuple[Session, bool]:
        """Claim a session for a connection; also returns whether it was present before (section 3.2.2.1.1).

        Its epoch is above ``above``, which another node's store may have reached.

        Raises:

        - :class:`~kinmqtt.broker.ownership.client_id_reuse.SessionOfAnotherUser`: the client id is in use by another
          user, whose session is not changed;
        - :class:`~kinmqtt.broker.ownership.capacity.CapacityExceeded` and
          :class:`~kinmqtt.broker.ownership.capacity.MemoryShort`: the session is refused;
        - :class:`~kinmqtt.broker.turn.recovery.CommitFailed`: what the earlier session left could not be committed.
        """
        async with self._registry.locks.of(opening.client.client_id):
            return await self._open(opening, above)

    async def _open(self, opening: Opening, above: int) -> tuple[Session, bool]:
        client = opening.client
        old = self._registry.get(client.client_id)
        if old is not None:
            self.reuse.check(old, opening.claimant)
        await self.take(client.client_id, client)
        claim = await self._claim(opening, above)
        had = claim.home_uid if claim.previous_owner is None else claim.previous_owner.uid
        if had not in (None, self._runtime.node.uid):
            self._coming[client.client_id] = had
        try:
            return await self._use(opening, claim, above)
        except BaseException:
            # Without a release the stored session would never expire.
            self.release(client.client_id, claim)
            raise
        finally:
            self._coming.pop(client.client_id, None)

    async def take(self, client_id: str, by: Client | None) -> None:
        """Take a session from its connection, and wait until all that this leaves is committed.

        ``by`` is the client that has come back to it; ``None`` if it has come to another node. The caller holds the
        lock of the client id. Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed`.
        """
        runtime = self._runtime
        old = self._registry.get(client_id)
        if old is not None:
            if old.connection is not None:
                runtime.statistics.sessions_taken_over.value += 1
                old.connection.taken_over(by)
            # Writes made under the old epoch must be committed before the claim ends that epoch.
            await runtime.turn.drained()
        await self._wills.wait_for_attempt(client_id)
        await self._removal.wait_until_done(client_id)
        if runtime.turn.recovery.awaits_retry(client_id):
            # A session that has ended must not come back because its end could not be committed.
            runtime.turn.retry(client_id)
            await runtime.turn.drained()
            if runtime.turn.recovery.awaits_retry(client_id):
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)

    async def _claim(self, opening: Opening, above: int) -> Claim:
        """Claim a client id; where it is another user's, raise :class:`SessionOfAnotherUser` and change nothing."""
        claim = await self.claim(opening.client.client_id, self.reuse.claiming(opening.claimant, above))
        if claim is None:
            raise SessionOfAnotherUser
        return claim

    async def claim(self, client_id: str, how: Callable[[str, NodeIdentity], Maybe[Claim | None]]) -> Claim | None:
        """Claim a client id by one of the session store's methods; the caller holds the lock of the client id.

        Writes made for the session while the store answers get the new epoch, so they are not refused.
        """
        turn = self._runtime.turn
        epochs = None
        try:
            await turn.pause_writes(client_id)
            claim = await resolve(how(client_id, self._runtime.node))
            session = self._registry.get(client_id)
            if session is not None and claim is not None and _epoch_before(claim) == session.epoch:
                epochs = (session.epoch, claim.epoch)
                session.epoch = claim.epoch
        finally:
            turn.resume_writes(client_id, epochs)
        return claim

    def release(self, client_id: str, claim: Claim) -> None:
        """Release a claim that no connection uses: the stored session, if there is one, waits as before."""
        stored = claim.session
        if stored is None:
            self._runtime.stores.session.release(client_id, claim.epoch)
        else:
            self._registry.write(release_of(stored, claim.epoch, self._runtime.clock.now()))

    async def _use(self, opening: Opening, claim: Claim, above: int) -> tuple[Session, bool]:
        """Give the connection the claimed session, or a new one."""
        client_id = opening.client.client_id
        is_stored = claim.session is not None
        self.reuse.check_claimed(claim.session, opening.claimant)
        self._capacity.check_memory(opening, is_stored)
        self._capacity.check(opening, is_stored, self._registry.get(client_id))
        session = await self.present(client_id, claim)
        expired = _has_expired(claim.session, self._runtime.clock.now())
        # DISCONNECT, or a CONNECT with an expiry of 0, has ended it; others may not have received its messages yet.
        ended = session is not None and session.expiry_s == 0
        if session is not None and (opening.clean_start or expired or ended):
            await self._ending.end_persistent(session, expired)
            session = None
            if not opening.expiry_s:
                # The store has deleted the session and with it the claim: another user could claim the client id.
                claim = await self._claim(opening, above)
                await self._announce(client_id, claim)
        # Other clients may have taken the capacity while this one waited.
        self._capacity.check(opening, claim.session is not None, self._registry.get(client_id))
        present = session is not None
        if session is None:
            session = self._registry.create(opening, claim.epoch)
        else:
            if opening.connection.is_closed():
                # The client never got this connection: its last will is that of the one before.
                opening.will = session.will
            self._registry.resume(session, opening)
        previous = self._holder(claim)
        if previous == self._runtime.node:
            previous = None
        if previous is not None:
            # The other nodes must route to this one before the client may count on it (section 3.2.2.1.1).
            await resolve(self._registry.routes_known())
            if self._registry.get(client_id) is not session:
                # Another node has claimed it meanwhile, and the copy here was dropped.
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
        self._registry.attach(session, opening)
        if present and previous is not None and self._runtime.hooks.session_moved.active:
            self._runtime.hooks.session_moved(client_id, previous)
        if opening.connection.is_closed():
            self._leaving.connection_closed(session, opening.connection, will_stands=present)
        return session, present

    async def _announce(self, client_id: str, claim: Claim) -> None:
        """Announce a claim; returns when the node that held the session has let go of it."""
        await resolve(self._cluster.claim(client_id, claim.epoch, self._holder(claim)))

    def _holder(self, claim: Claim) -> NodeIdentity | None:
        """Return the node that held the session until now, whether its client was connected or not."""
        if claim.previous_owner is not None or claim.home_uid is None:
            return claim.previous_owner
        return self._registry.node_of(claim.home_uid)

    async def present(self, client_id: str, claim: Claim) -> Session | None:
        """Return the session that a claim has found, in the state of the stores; ``None`` if there is none."""
        session = self._registry.get(client_id)
        if session is not None and session.persistent and claim.epoch > session.epoch:
            # Another node has claimed it since. The copy here is outdated, but stays until the queue is loaded.
            state = await self._reload.load(client_id, claim.epoch)
            if self._registry.get(client_id) is session:
                self._registry.drop_copy(session)
            session = None if claim.session is None else self._registry.adopt(claim, claim.session, state)
        if session is not None:
            session.epoch = claim.epoch
        await self._announce(client_id, claim)
        # The will may have become due while the cluster's answer was awaited.
        await self._wills.wait_for_attempt(client_id)
        if session is None and claim.session is not None:
            stored = claim.session
            session = self._registry.adopt(claim, stored, await resolve(self._runtime.stores.queue.load(client_id)))
        if session is not None:
            await self._reload.complete(session)
        return session


def release_of(stored: StoredSession, epoch: int, now: float) -> ReleaseSession:
    """Return the write that releases a claimed session; its deadlines count from ``now`` if it has none."""
    expires_at, will_due_at = stored.expires_at, stored.will_due_at
    if expires_at is None:
        expires_at = expiry_moment(stored.expiry_s, now)
    if will_due_at is None and stored.will is not None:
        will_due_at = now + stored.will.delay_s
    return ReleaseSession(stored.client_id, epoch, expires_at, will_due_at)


def _has_expired(stored: StoredSession | None, now: float) -> bool:
    """Return whether a session expired before its client came back, and has not been ended yet."""
    return stored is None or (stored.expires_at is not None and stored.expires_at <= now)


def _epoch_before(claim: Claim) -> int:
    """Return the epoch of the previous claim: if a session here has it, no other node has claimed it in between."""
    return claim.epoch - 1 if claim.previous_epoch is None else claim.previous_epoch
