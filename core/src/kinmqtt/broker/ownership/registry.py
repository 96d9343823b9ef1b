"""All sessions by client id: who may use one, when one ends, and what becomes of its will.

A client id has one connection at most. Claims of one client id stand in line; each takes the session from the
connection before it, and its epoch shuts out whatever that one still wants to write.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import define, evolve
from twisted.internet.defer import Deferred, DeferredList, DeferredLock
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.accounts import Account
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.ownership.client_id_reuse import OthersSession, Ownership
from kinmqtt.broker.ownership.redistribution import Redistribution
from kinmqtt.broker.ownership.wills import Wills
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.session.session import Session, expiry_moment
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.broker.turn.turn import ELSEWHERE, CommitFailed
from kinmqtt.hooks.awaitables import pause, run, settle
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.services.queue import Append, QueueState, QueueWrite
from kinmqtt_spi.services.session import (
    Claim,
    Claimant,
    ClearWill,
    DiscardSession,
    OpenSession,
    ReleaseSession,
    ResumeSession,
    SessionWrite,
    StoredSession,
)
from kinmqtt_spi.values import Client, Maybe, NodeIdentity, Will

if TYPE_CHECKING:
    from kinmqtt.broker.routing.due import Due
    from kinmqtt.broker.routing.publisher import Publishing
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime

log = Logger("kinmqtt.sessions")

AT_ONCE: Final = 1000
"""Sessions looked after in one go by the housekeeping."""

MESSAGES_AT_ONCE: Final = 200
"""Queued messages that expire, asked for at one time."""

FEW: Final = 64
"""Subscriptions of a session that are removed at once; more are removed in slices."""


@define(slots=True)
class Opening:
    """What a CONNECT asks of its session."""

    connection: Peer
    attach: Callable[[Session], None]
    """Hands the session to the connection."""
    client: Client
    claimant: Claimant
    """The same client as a session store knows it."""
    clean_start: bool
    expiry_s: int
    will: Will | None
    receive_maximum: int
    max_packet_bytes: int | None
    topic_aliases: int
    """Topic aliases that the client takes, as far as the broker uses them."""


class NoRoom(Exception):
    """A client asks for more than there is room for: a further persistent session, or one more will."""


class MemoryShort(Exception):
    """Memory is short, and the client asks for a session of which something would remain."""


class Sessions:
    """The sessions this node owns."""

    def __init__(
        self, runtime: Runtime, router: Router, publishing: Publishing, due: Due, cluster: ClusterBackend
    ) -> None:
        self._runtime = runtime
        self._router = router
        self._publishing = publishing
        self._cluster = cluster
        self._redistribution = Redistribution(runtime, router)
        self._wills = Wills(runtime, publishing, due)
        self._ownership = Ownership(runtime)
        self._locks: dict[str, DeferredLock] = {}
        self._ending: set[str] = set()
        """Clients whose sessions have expired and are being ended."""
        self._forgetting: dict[str, list[Deferred[None]]] = {}
        """Clients whose subscriptions are being removed because their session is over, and who waits for that."""
        self._reloading: set[str] = set()
        """Clients whose state is being read anew, because the store did not keep what was done since."""
        self.by_id: dict[str, Session] = {}
        self.connected = 0

    def get(self, client_id: str) -> Session | None:
        """The session of a client id."""
        return self.by_id.get(client_id)

    async def open(self, opening: Opening) -> tuple[Session, bool]:
        """Claim a session for a connection; also answers whether it was there before (section 3.2.2.1.1).

        Raises :class:`~kinmqtt.broker.ownership.client_id_reuse.OthersSession` where it is another user's: nobody is
        disturbed then.
        """
        client_id = opening.client.client_id
        lock = self._locks.setdefault(client_id, DeferredLock())
        await lock.acquire()
        try:
            return await self._open(opening)
        finally:
            self._give_back(lock, client_id)

    async def _open(self, opening: Opening) -> tuple[Session, bool]:
        runtime = self._runtime
        client = opening.client
        old = self.by_id.get(client.client_id)
        if old is not None:
            self._ownership.check(old, opening.claimant)
            if old.connection is not None:
                runtime.statistics.sessions_taken_over.value += 1
                old.connection.taken_over(client)
            # Writes made under the old epoch must be in before the claim ends it.
            await runtime.turn.drained()
        await self._wills.attempted(client.client_id)
        await self._forgotten(client.client_id)
        if runtime.turn.owes(client.client_id):
            # A session that has ended must not come back because that could not be kept.
            runtime.turn.retry(client.client_id)
            await runtime.turn.drained()
            if runtime.turn.owes(client.client_id):
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
        claim = await self._claim(opening)
        try:
            return await self._claimed(opening, claim)
        except BaseException:
            # Nobody uses it now: what is stored must still expire.
            self._let_go(client.client_id, claim)
            raise

    async def _claim(self, opening: Opening) -> Claim:
        """Claim a client id; raises :class:`OthersSession` where it is another user's, and nothing was done."""
        claim = await self._claimed_by(opening.client.client_id, self._ownership.claiming(opening.claimant))
        if claim is None:
            raise OthersSession
        return claim

    async def _claimed_by(
        self, client_id: str, how: Callable[[str, NodeIdentity], Maybe[Claim | None]]
    ) -> Claim | None:
        """The answer to a claim. What is written of it meanwhile is not refused: it goes under the new epoch."""
        turn = self._runtime.turn
        epochs = None
        try:
            await turn.hold(client_id)
            claim = await settle(how(client_id, self._runtime.node))
            session = self.by_id.get(client_id)
            if session is not None and claim is not None and _epoch_before(claim) == session.epoch:
                epochs = (session.epoch, claim.epoch)
                session.epoch = claim.epoch
        finally:
            turn.go_on(client_id, epochs)
        return claim

    async def _claimed(self, opening: Opening, claim: Claim) -> tuple[Session, bool]:
        runtime = self._runtime
        client = opening.client
        self._ownership.check_claimed(claim.session, opening.claimant)
        if opening.expiry_s and claim.session is None and runtime.refuses:
            runtime.statistics.overload_refused["session"].value += 1
            raise MemoryShort
        self._check_room(opening, claim)
        session = self.by_id.get(client.client_id)
        if session is not None and session.kept and claim.epoch > session.epoch:
            # Others have claimed it since: what is here is how it was, and stays until what is stored is read.
            state = await self._loaded(client.client_id, claim.epoch)
            if self.by_id.get(client.client_id) is session:
                self._forget_copy(session)
            session = None if claim.session is None else self._adopted(claim, claim.session, state)
        if session is not None:
            session.epoch = claim.epoch
        await settle(self._cluster.claim(client.client_id, claim.epoch, claim.previous_owner))
        # Its will may have become due while the claim was waited for.
        await self._wills.attempted(client.client_id)
        if session is None and claim.session is not None:
            session = await self._adopt(claim, claim.session)
        if session is not None and client.client_id in self._reloading:
            session.restore(await self._loaded(client.client_id, session.epoch))
            self._reloading.discard(client.client_id)
        expired = _has_expired(claim.session, runtime.clock.now())
        # DISCONNECT, or a CONNECT with an expiry of 0, has ended it; what it held may still be on its way to others.
        ended = session is not None and session.expiry_s == 0
        if session is not None and (opening.clean_start or expired or ended):
            await self._end_kept(session, expired)
            session = None
            if not opening.expiry_s:
                # With what was stored the store has forgotten who holds the client id: another user could claim it.
                claim = await self._claim(opening)
                await settle(self._cluster.claim(client.client_id, claim.epoch, claim.previous_owner))
        # Others may have come while this one waited.
        self._check_room(opening, claim)
        present = session is not None
        if session is None:
            session = self._create(opening, claim.epoch)
        else:
            self._resume(session, opening)
        self._attach(session, opening)
        return session, present

    def _let_go(self, client_id: str, claim: Claim) -> None:
        """A claimed client id is nobody's after all: its stored session waits as before, if it still has one."""
        stored = claim.session
        if stored is None:
            self._runtime.stores.session.release(client_id, claim.epoch)
        else:
            expires_at, will_due_at = self._deadlines(stored, self._runtime.clock.now())
            self._write(ReleaseSession(client_id, claim.epoch, expires_at, will_due_at))

    @staticmethod
    def _deadlines(stored: StoredSession, now: float) -> tuple[float | None, float | None]:
        """When a stored session expires, and when its will is due; from ``now`` where it was never released."""
        expires_at, will_due_at = stored.expires_at, stored.will_due_at
        if expires_at is None:
            expires_at = expiry_moment(stored.expiry_s, now)
        if will_due_at is None and stored.will is not None:
            will_due_at = now + stored.will.delay_s
        return expires_at, will_due_at

    def _check_room(self, opening: Opening, claim: Claim) -> None:
        """Raise :class:`NoRoom` where a client asks for more than its user, or all together, may have."""
        runtime = self._runtime
        limits = runtime.limits
        everybody = runtime.accounts.all
        user = runtime.accounts.of(opening.client.quota_key) or Account("")
        if opening.expiry_s and claim.session is None:
            if runtime.stores.session.count() + runtime.turn.batch.opened >= limits.max_sessions:
                raise NoRoom("there are too many sessions (limits.max_sessions)")
            if user.sessions >= limits.share_of(limits.max_sessions):
                raise NoRoom("its user has too many sessions (limits.user_share of limits.max_sessions)")
        if opening.will is None:
            return
        before = self.by_id.get(opening.client.client_id)
        # The will of the connection before, or of the session that is resumed, makes room.
        more_bytes = opening.will.message.size_bytes - (0 if before is None else before.will_bytes)
        if more_bytes <= 0:
            return
        if everybody.will_bytes + more_bytes > limits.max_all_will_bytes:
            raise NoRoom("all wills together take too much (limits.max_all_will_bytes)")
        if user.will_bytes + more_bytes > limits.share_of(limits.max_all_will_bytes):
            raise NoRoom("its user's wills take too much (limits.user_share of limits.max_all_will_bytes)")

    def _attach(self, session: Session, opening: Opening) -> None:
        """Give the session to its connection, while the claim still has the client id to itself."""
        connection = opening.connection
        session.attach(connection, opening.receive_maximum, opening.max_packet_bytes, opening.topic_aliases)
        opening.attach(session)
        self.connected += 1
        self._router.connected(session)
        if connection.is_closed():
            self.left(session, connection, will_stands=False)

    def _create(self, opening: Opening, epoch: int) -> Session:
        session = Session(self._runtime, opening.client, epoch, opening.expiry_s)
        session.will = opening.will
        self.by_id[session.client_id] = session
        if session.kept:
            self._write(OpenSession(epoch, self._stored(session)))
            self._runtime.turn.batch.opened += 1
        if self._runtime.hooks.session_created.active:
            self._runtime.hooks.session_created(opening.client)
        return session

    def _resume(self, session: Session, opening: Opening) -> None:
        client = opening.client
        before = (session.expiry_s, session.will)
        self._runtime.turn.batch.otherwise.append(lambda reason: self._unresumed(session, *before))
        session.identify(client)
        session.expiry_s = opening.expiry_s
        session.will = opening.will
        self._write(
            ResumeSession(
                session.client_id,
                session.epoch,
                opening.expiry_s,
                opening.will,
                client.username,
                client.protocol_version,
            )
        )
        if self._runtime.hooks.session_resumed.active:
            self._runtime.hooks.session_resumed(client)

    def _unresumed(self, session: Session, expiry_s: int, will: Will | None) -> None:
        """That its client came back was not kept: when it goes, the session is what it was."""
        session.expiry_s = expiry_s
        session.will = will

    async def _adopt(self, claim: Claim, stored: StoredSession) -> Session:
        """Make a stored session one of this node's."""
        return self._adopted(claim, stored, await settle(self._runtime.stores.queue.load(stored.client_id)))

    def _adopted(self, claim: Claim, stored: StoredSession, state: QueueState) -> Session:
        client = Client(stored.client_id, stored.username, protocol_version=stored.protocol_version)
        session = Session(self._runtime, client, claim.epoch, stored.expiry_s, kept=True)
        session.will = stored.will
        session.username_unverified = stored.username_unverified
        session.created_at = stored.created_at
        session.restore(state)
        self.by_id[stored.client_id] = session
        for subscription in stored.subscriptions:
            refusal = self._runtime.rights.spaces.refusal(Action.SUBSCRIBE, subscription.filter)
            if refusal is not None:
                # The store keeps it, for a plugin may claim its topics again.
                text = "{client_id!r} gets nothing by its subscription to {filter!r}: {why}"
                log.warn(text, client_id=stored.client_id, filter=subscription.full_filter, why=refusal.text)
                continue
            session.add_subscription(subscription)
            self._router.subscribe(stored.client_id, subscription)
        return session

    async def restore(self) -> int:
        """After a start: adopt every stored session that no other node holds; their number.

        The clocks of those that were left open run from now on.
        """
        runtime = self._runtime
        cursor: object = None
        restored = 0
        # Of nodes that start together each is told of others.
        while adopted := await self._adopt_some(patient=False):
            restored += adopted
        while True:
            page = await settle(runtime.stores.session.iterate(cursor, AT_ONCE))
            for _epoch, stored in page.sessions:
                if stored.client_id in page.elsewhere or stored.client_id in self.by_id:
                    continue
                now = runtime.clock.now()
                claim = await settle(runtime.stores.session.claim(stored.client_id, runtime.node))
                if claim.session is None:
                    continue
                session = await self._adopt(claim, claim.session)
                restored += 1
                expires_at, will_due_at = self._deadlines(stored, now)
                self._write(ReleaseSession(session.client_id, session.epoch, expires_at, will_due_at))
            cursor = page.cursor
            if cursor is None:
                return restored

    async def adopt_orphaned(self, now: float) -> None:
        """Go on with what nodes that are gone have left behind; what fails is named again."""
        try:
            adopted = await self._adopt_some(patient=True)
        except (CommitFailed, ServiceUnavailable):
            return
        if adopted:
            log.info("{count} sessions that another node has left behind are here now", count=adopted)

    async def _adopt_some(self, patient: bool) -> int:
        """Adopt what the store names as left behind; how many these were."""
        runtime = self._runtime
        names = await settle(runtime.stores.session.orphaned(runtime.node, AT_ONCE))
        several: list[Deferred[Any]] = [run(self._adopt_one(name, patient)) for name in names]
        answers = await DeferredList(several, consumeErrors=True)
        for _, answer in answers:
            if isinstance(answer, Failure):
                answer.raiseException()
        return sum(answer is True for _, answer in answers)

    async def _adopt_one(self, client_id: str, patient: bool) -> bool:
        """Adopt what was left behind of a client, unless it has come back meanwhile."""
        lock = self._locks.setdefault(client_id, DeferredLock())
        await lock.acquire()
        try:
            await self._wills.attempted(client_id)
            await self._forgotten(client_id)
            claim = await self._claimed_by(client_id, self._runtime.stores.session.adopt)
            if claim is None:
                return False
            try:
                await self._go_on_with(claim, client_id, patient)
            finally:
                session = self.by_id.get(client_id)
                if session is None or session.connection is None or session.epoch != claim.epoch:
                    self._let_go(client_id, claim)
            return True
        finally:
            self._give_back(lock, client_id)

    async def _go_on_with(self, claim: Claim, client_id: str, patient: bool) -> None:
        """Have what is here of a client be what a claim found."""
        session = self.by_id.get(client_id)
        if session is not None and session.epoch == claim.epoch:
            return  # Nobody else has claimed it since this node did, which was taken for gone.
        state = None if claim.session is None else await self._loaded(client_id, claim.epoch, patient)
        session = self.by_id.get(client_id)
        if session is not None:
            self._forget_copy(session)
        if claim.session is not None and state is not None:
            self._adopted(claim, claim.session, state)

    def left(self, session: Session, connection: Peer, will_stands: bool) -> None:
        """A connection that used the session is gone; the will falls away after a proper DISCONNECT."""
        if session.connection is not connection:
            return
        self.connected -= 1
        session.detach()
        self._router.disconnected(session)
        self._cluster.release(session.client_id, session.epoch)
        if not will_stands:
            session.will = None
        ends = session.expiry_s == 0
        if ends and session.kept:
            # DISCONNECT has cut the session's life short.
            self._in_background(self._end_until_kept(session), session.client_id)
            return
        self._redistribution.member_left(session, ends)
        if ends:
            self._end(session)
            return
        if session.waiting.count:
            self._in_background(self._hand_on_queue(session), session.client_id)
        now = self._runtime.clock.now()
        will_due_at = None
        if session.will is not None:
            delay_s = min(session.will.delay_s, session.expiry_s)
            if delay_s:
                will_due_at = now + delay_s
            else:
                self._wills.publish(session)
        else:
            self._write(ClearWill(session.client_id, session.epoch))
        expires_at = expiry_moment(session.expiry_s, now)
        self._write(ReleaseSession(session.client_id, session.epoch, expires_at, will_due_at))

    async def expire(self, now: float) -> None:
        """End the sessions whose time is over, and publish the wills whose delay is."""
        store = self._runtime.stores.session
        slices = self._runtime.slices
        for epoch, stored in await settle(store.due_wills(now, AT_ONCE)):
            if slices.is_over():
                await slices.turn()
            session = self._unused(stored.client_id, epoch)
            # Of one that is being claimed it is not known yet whether its client comes in time.
            if session is not None and session.will is not None and stored.client_id not in self._locks:
                self._wills.publish(session)
        ending = []
        for epoch, stored in await settle(store.expired(now, AT_ONCE)):
            session = self._unused(stored.client_id, epoch)
            if session is not None and stored.client_id not in self._ending:
                # None of them gives what it held to another that goes with it.
                session.ending = True
                ending.append(session)
                self._ending.add(stored.client_id)
        # As many in one turn as go, and none waits for another. One that could not be ended is found again.
        for session in ending:
            if slices.is_over():
                await slices.turn()
            self._in_background(self._end_expired(session), session.client_id)

    async def expire_messages(self, now: float) -> None:
        """Remove queued messages that have expired at ``now``, some of them at one time."""
        runtime = self._runtime
        for _ in range(AT_ONCE // MESSAGES_AT_ONCE):
            expired = await settle(runtime.stores.queue.expire(now, MESSAGES_AT_ONCE))
            for client_id, entry in expired:
                session = self.by_id.get(client_id)
                if session is not None:
                    session.expired_in_store(entry)
                runtime.drop(client_id, entry.message, "expired")
                if runtime.hooks.message_expired.active:
                    runtime.hooks.message_expired(client_id, entry.message)
            if len(expired) < MESSAGES_AT_ONCE:
                return
            await runtime.slices.turn()

    def fenced(self, client_id: str, epoch: int) -> None:
        """A newer owner than that of ``epoch`` holds the session: drop our copy of it, and its connection."""
        session = self.by_id.get(client_id)
        if session is None or session.epoch > epoch:
            return  # The newer owner is this node.
        log.warn("session {client_id!r} has a newer owner", client_id=client_id)
        self._forget_copy(session)

    def _forget_copy(self, session: Session) -> None:
        """What is here of a session counts no more: the store has what its newer owner makes of it."""
        del self.by_id[session.client_id]
        for subscription in session.subscriptions.values():
            # At once: whoever has read what is stored puts it back in the same turn.
            self._router.unsubscribe(session.client_id, subscription)
        connection = session.connection
        if connection is not None:
            self.connected -= 1
            session.detach()
        session.end()
        if connection is not None:
            connection.taken_over(None)

    def unopened(self, client_id: str, epoch: int, reason: ReasonCode) -> None:
        """The session store did not keep that a session began: there is none."""
        session = self.by_id.get(client_id)
        if session is None or session.epoch != epoch:
            return
        if session.connection is not None:
            session.connection.fail(reason, "a store did not keep the session")
        if self.by_id.get(client_id) is session:
            del self.by_id[client_id]
            session.end()
            self._forget_subscriptions(session)

    def on_commit_failed(
        self, client_id: str, writes: Sequence[QueueWrite], reason: ReasonCode, certain: bool
    ) -> None:
        """The queue store did not keep what was done for a client.

        New messages are forgotten: who published them is not acknowledged. Where more was done, or it is not
        ``certain`` that nothing was kept, what the store holds is what counts: the client is sent away with the
        ``reason``, and comes back to that.
        """
        session = self.by_id.get(client_id)
        new = [write for write in writes if isinstance(write, Append)]
        if certain:
            for write in new:
                if reason is not ELSEWHERE or not self._to_another_member(client_id, write):
                    self._runtime.drop(client_id, write.entry.message, "store_failed")
        if session is None or not session.kept:
            return
        if certain and len(new) == len(writes):
            for write in new:
                session.forget(write)
            return
        if session.connection is not None:
            session.connection.fail(reason, "a store did not keep what is in flight")
        self._go_back(session)

    def _to_another_member(self, client_id: str, write: Append) -> bool:
        """A newer owner's epoch refused a message that came by a shared subscription: another member may have it."""
        entry = write.entry
        if entry.shared_filter is None:
            return False
        self._runtime.turn.touch()
        publication = Publication.of(entry.message)
        return self._router.to_another_member(client_id, entry.shared_filter, publication, connected=False, gone=True)

    def _go_back(self, session: Session) -> None:
        """Have a session go back to what the queue store holds."""
        client_id = session.client_id
        if client_id not in self._reloading:
            self._reloading.add(client_id)
            self._in_background(self._reload(session), client_id)

    async def _reload(self, session: Session) -> None:
        """Go back to what the queue store holds, however long it takes to tell; a claim under way does so itself."""
        client_id = session.client_id
        runtime = self._runtime
        lock = self._locks.setdefault(client_id, DeferredLock())
        await lock.acquire()
        told = False
        try:
            while self.by_id.get(client_id) is session and client_id in self._reloading:
                try:
                    state = await self._loaded(client_id, session.epoch)
                except CommitFailed:
                    await pause(runtime.clock, RETRY_S)
                except ServiceUnavailable as error:
                    if not told:
                        log.error(
                            "the queue of {client_id!r} can't be loaded: {error}", client_id=client_id, error=error
                        )
                    told = True
                    await pause(runtime.clock, RETRY_S)
                except Exception:
                    if not told:
                        log.failure("the queue of {client_id!r} can't be loaded", client_id=client_id)
                    told = True
                    await pause(runtime.clock, RETRY_S)
                else:
                    session.restore(state)
                    return
        finally:
            self._reloading.discard(client_id)
            self._give_back(lock, client_id)

    async def _loaded(self, client_id: str, epoch: int, patient: bool = False) -> QueueState:
        """What the queue store holds when nothing is owed, with what waits to be kept there by that epoch's owner.

        Of what was kept while the store is asked nobody could say whether its answer has it: meanwhile nothing of the
        client is handed over. Whoever is ``patient`` waits where it can't be told.
        """
        turn = self._runtime.turn
        while True:
            try:
                await turn.drained()
                state = await self._loaded_alone(client_id)
            except (CommitFailed, ServiceUnavailable):
                if not patient:
                    raise
                await pause(self._runtime.clock, RETRY_S)
                continue
            known = _with_held(state, turn.held(client_id), epoch)
            if known is not None:
                return known

    async def _loaded_alone(self, client_id: str) -> QueueState:
        turn = self._runtime.turn
        try:
            await turn.hold(client_id)
            if turn.owes(client_id, queue_only=True):
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
            return await settle(self._runtime.stores.queue.load(client_id))
        finally:
            turn.go_on(client_id)

    def _unused(self, client_id: str, epoch: int) -> Session | None:
        session = self.by_id.get(client_id)
        if session is None or session.connection is not None or session.epoch != epoch:
            return None
        return session

    def _end(self, session: Session) -> None:
        """A session that is not kept is over: its will, if it still has one, is due (MQTT-3.1.2-8)."""
        if len(session.subscriptions) > FEW:
            # Until they are removed it is by this that nothing comes for it.
            self.by_id.pop(session.client_id, None)
        self._forget_subscriptions(session)
        self._wills.publish(session)
        self.by_id.pop(session.client_id, None)
        session.end()
        self._runtime.stores.session.release(session.client_id, session.epoch)
        self._tell_ended(session, expired=False)

    async def _end_kept(self, session: Session, expired: bool = False) -> None:
        """A kept session is over: others get what it held for their groups, and its will is published.

        Whoever calls this holds the lock of the client id. Raises
        :class:`~kinmqtt.broker.turn.turn.CommitFailed` where a store fails: the session is then as if nothing had been.
        """
        session.ending = True
        try:
            await self._end_kept_now(session, expired)
        finally:
            session.ending = False

    async def _end_kept_now(self, session: Session, expired: bool) -> None:
        client_id = session.client_id
        await self._wills.attempted(client_id)
        will = session.will
        message = None if will is None else await self._wills.message_of(session.client, will)
        if self._redistribution.member_left(session, ends=True):
            await self._runtime.turn.committed()
        await self._redistribution.queue_left(session, ends=True)
        if self.by_id.get(client_id) is not session:
            return  # A newer owner holds it by now.
        # From here on nothing more may come for it: what is kept behind its end would stay for ever.
        del self.by_id[client_id]
        self._router.gone(session)
        try:
            if message is None:
                self._discard(session)
                await self._runtime.turn.committed()
            else:
                await self._publishing.publish_with(message, lambda: self._discard(session))
        except BaseException:
            self.by_id[client_id] = session
            self._router.back(session)
            self._go_back(session)
            raise
        session.will = None
        session.end()
        self._tell_ended(session, expired)
        await self._forget_in_slices(session)

    def _discard(self, session: Session) -> None:
        batch = self._runtime.turn.batch
        purge = queue.Purge(session.client_id, session.epoch)
        discard = DiscardSession(session.client_id, session.epoch)
        batch.queue.append(purge)
        batch.sessions.append(discard)
        batch.tied |= {purge, discard}

    def _tell_ended(self, session: Session, expired: bool) -> None:
        hooks = self._runtime.hooks
        notice: Any = hooks.session_expired if expired else hooks.session_discarded
        if notice.active:
            notice(session.client_id)

    async def _end_unused(self, session: Session, expired: bool = False) -> bool:
        """End a kept session that has no connection; ``False`` where a store fails, and it must be tried again."""
        client_id = session.client_id
        lock = self._locks.setdefault(client_id, DeferredLock())
        await lock.acquire()
        try:
            if self._unused(client_id, session.epoch) is session:
                await self._end_kept(session, expired)
                if expired:
                    self._runtime.statistics.sessions_expired.value += 1
        except CommitFailed:
            return False
        finally:
            self._give_back(lock, client_id)
        return True

    async def _end_expired(self, session: Session) -> None:
        try:
            await self._end_unused(session, expired=True)
        finally:
            session.ending = False
            self._ending.discard(session.client_id)

    async def _end_until_kept(self, session: Session) -> None:
        while not await self._end_unused(session):
            await pause(self._runtime.clock, RETRY_S)

    async def _hand_on_queue(self, session: Session) -> None:
        """What is not kept of that is read anew: it waits for the client, or for the end of its session."""
        client_id = session.client_id
        lock = self._locks.setdefault(client_id, DeferredLock())
        await lock.acquire()
        try:
            if self._unused(client_id, session.epoch) is session:
                await self._redistribution.queue_left(session, ends=False)
        except CommitFailed:
            pass
        finally:
            self._give_back(lock, client_id)

    def _give_back(self, lock: DeferredLock, client_id: str) -> None:
        lock.release()
        if not lock.locked and not lock.waiting and self._locks.get(client_id) is lock:
            del self._locks[client_id]

    def _forget_subscriptions(self, session: Session) -> None:
        """Remove the subscriptions of a session that is over: many in slices, for which its client id waits."""
        if len(session.subscriptions) <= FEW:
            for subscription in session.subscriptions.values():
                self._router.unsubscribe(session.client_id, subscription)
            return
        self._router.gone(session)
        self._in_background(self._forget_later(session), session.client_id)

    async def _forget_later(self, session: Session) -> None:
        client_id = session.client_id
        await self._forgotten(client_id)
        self._forgetting[client_id] = []
        try:
            await self._forget_in_slices(session)
        finally:
            for waiting in self._forgetting.pop(client_id):
                waiting.callback(None)

    async def _forget_in_slices(self, session: Session) -> None:
        slices = self._runtime.slices
        if len(session.subscriptions) > FEW:
            await slices.turn()  # What waited for the client is being forgotten in this one.
        for subscription in tuple(session.subscriptions.values()):
            self._router.unsubscribe(session.client_id, subscription)
            if slices.is_over():
                await slices.turn()

    async def _forgotten(self, client_id: str) -> None:
        """Wait until the subscriptions of an earlier session are removed: a new one may have the same filters."""
        while client_id in self._forgetting:
            over: Deferred[None] = Deferred()
            self._forgetting[client_id].append(over)
            await over

    def _in_background(self, work: Coroutine[Any, Any, None], client_id: str) -> None:
        run(work).addErrback(
            lambda failure: log.failure("what {client_id!r} left could not be seen to", failure, client_id=client_id)
        )

    def _write(self, write: SessionWrite) -> None:
        self._runtime.turn.batch.sessions.append(write)
        self._runtime.turn.touch()

    def _stored(self, session: Session) -> StoredSession:
        return StoredSession(
            session.client_id,
            session.expiry_s,
            (),
            session.will,
            session.created_at,
            session.client.username,
            session.version,
        )


def _with_held(state: QueueState, writes: Sequence[QueueWrite], epoch: int) -> QueueState | None:
    """What a queue holds once these writes are kept as well; ``None`` where that is not plain.

    What was written under another epoch will be refused: those who are told must be told before the session begins.
    """
    queued, size_bytes, last = state.sizes.queued, state.sizes.queued_bytes, state.last_sequence
    for write in writes:
        if not isinstance(write, Append) or write.packet_id is not None or write.epoch != epoch:
            return None
        queued += 1
        size_bytes += write.entry.size_bytes
        last = max(last, write.entry.sequence)
    return evolve(state, sizes=evolve(state.sizes, queued=queued, queued_bytes=size_bytes), last_sequence=last)


def _has_expired(stored: StoredSession | None, now: float) -> bool:
    """Whether a session's time was over before its client came back, though nobody has ended it yet."""
    return stored is None or (stored.expires_at is not None and stored.expires_at <= now)


def _epoch_before(claim: Claim) -> int:
    """The epoch of the claim before a claim: where it is a session's here, nobody else has claimed it in between."""
    return claim.epoch - 1 if claim.previous_epoch is None else claim.previous_epoch
