"""The sessions that this node holds, by client id.

A client id has at most one connection. To claim, end, reload or redistribute a persistent session, hold the lock of
its client id. The other modules of this package use the registry, and the registry uses none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.locks import ClientIdLocks
from kinmqtt.broker.session.outbox_session import PREFIX, OutboxSession
from kinmqtt.broker.session.session import Session
from kinmqtt_spi.services.authorization import Action
from kinmqtt_spi.services.queue import QueueState
from kinmqtt_spi.services.session import Claim, OpenSession, ResumeSession, SessionWrite, StoredSession
from kinmqtt_spi.values import Client, Maybe, NodeIdentity, Will

if TYPE_CHECKING:
    from kinmqtt.broker.ownership.opening import Opening
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime

log = Logger("kinmqtt.sessions")

SESSIONS_AT_ONCE: Final = 1000
"""The most stored sessions that one request to the session store returns."""


MAX_ARRIVALS: Final = 10_000
"""The sessions that are remembered as ones that have come here."""


class Registry:
    """The sessions of this node, with and without a connection."""

    def __init__(self, runtime: Runtime, router: Router) -> None:
        self._runtime = runtime
        self._router = router
        self.newest_arrival = 0
        """The version of the routes with which other nodes know of the last session that came from a store."""
        self._arrivals: dict[str, int] = {}
        """By client id: the version with which other nodes know of a session that came, the last ones."""
        self.by_id: dict[str, Session] = {}
        self.connected = 0
        """The number of sessions that have a connection."""
        self.locks = ClientIdLocks()
        self.outboxes: dict[str, OutboxSession] = {}
        """Those of the sessions that are outboxes, by client id; also in the place of lost ones."""
        self._outbox_added: Callable[[OutboxSession], object] = lambda session: None

    def get(self, client_id: str) -> Session | None:
        """Return the session of a client id."""
        return self.by_id.get(client_id)

    def owned(self) -> list[tuple[str, int]]:
        """Return the client ids of all sessions, with their epochs."""
        return [(session.client_id, session.epoch) for session in self.by_id.values()]

    def offline(self, client_id: str, epoch: int) -> Session | None:
        """Return the session of a client id if it has no connection and still has that epoch."""
        session = self.by_id.get(client_id)
        if session is None or session.connection is not None or session.epoch != epoch:
            return None
        return session

    async def settled(self, client_id: str) -> Session | None:
        """Return the session of a client id, after the claims of it that are under way here."""
        if client_id in self.locks:
            async with self.locks.of(client_id):
                pass
        return self.by_id.get(client_id)

    def arrived_since(self, version: int) -> frozenset[str]:
        """Return the client ids of the sessions that came from a store after a version of the routes."""
        found = []
        for client_id, arrival in reversed(self._arrivals.items()):
            if arrival <= version:
                break
            found.append(client_id)
        return frozenset(found)

    # Adding

    def create(self, opening: Opening, epoch: int) -> Session:
        """Begin a new session; a persistent one is written to the session store with this turn's batch."""
        session = Session(self._runtime, opening.client, epoch, opening.expiry_s)
        session.will = opening.will
        self.by_id[session.client_id] = session
        if session.persistent:
            self.write(OpenSession(epoch, _stored(session)))
            self._runtime.turn.batch.opened += 1
        if self._runtime.hooks.session_created.active:
            self._runtime.hooks.session_created(opening.client)
        return session

    def resume(self, session: Session, opening: Opening) -> None:
        """Continue a session for the client that has come back to it."""
        client = opening.client
        before = (session.expiry_s, session.will)
        self._runtime.turn.batch.on_commit_failed.append(lambda reason: _undo_resume(session, *before))
        session.identify(client)
        session.expiry_s = opening.expiry_s
        session.will = opening.will
        self.write(
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

    def when_outbox_added(self, call: Callable[[OutboxSession], object]) -> None:
        """Call ``call`` with each outbox that is restored or adopted."""
        self._outbox_added = call

    def create_outbox(self, client_id: str, epoch: int) -> OutboxSession:
        """Begin the session of an outbox; it is written to the session store with this turn's batch."""
        session = OutboxSession(self._runtime, client_id, epoch)
        self.write(OpenSession(epoch, _stored(session)))
        self._put_outbox(session)
        return session

    def stand_in(self, client_id: str) -> OutboxSession:
        """Refuse messages for an outbox that another node has, until it is claimed again."""
        session = OutboxSession(self._runtime, client_id, 0)
        session.is_lost = True
        self._put_outbox(session)
        return session

    def _put_outbox(self, session: OutboxSession) -> None:
        self.by_id[session.client_id] = session
        self.outboxes[session.client_id] = session

    def _adopt_outbox(self, claim: Claim, client_id: str, state: QueueState) -> OutboxSession:
        """Make a stored outbox one of this node's. Who consumes it sets its subscriptions anew."""
        session = OutboxSession(self._runtime, client_id, claim.epoch)
        session.restore(state)
        self._put_outbox(session)
        self._outbox_added(session)
        return session

    @property
    def clients(self) -> int:
        """The number of sessions that are clients'."""
        return len(self.by_id) - len(self.outboxes)

    def adopt(self, claim: Claim, stored: StoredSession, state: QueueState) -> Session:
        """Make a stored session one of this node's, with the ``state`` of its queue."""
        if stored.client_id.startswith(PREFIX):
            return self._adopt_outbox(claim, stored.client_id, state)
        client = Client(stored.client_id, stored.username, protocol_version=stored.protocol_version)
        session = Session(self._runtime, client, claim.epoch, stored.expiry_s, persistent=True)
        session.will = stored.will
        session.username_unverified = stored.username_unverified
        session.created_at = stored.created_at
        session.restore(state)
        client_id = stored.client_id
        self.by_id[client_id] = session
        for subscription in stored.subscriptions:
            refusal = self._runtime.rights.spaces.refusal(Action.SUBSCRIBE, subscription.filter)
            if refusal is not None:
                # The subscription stays in the store: a plugin may claim these topics again later.
                text = "{client_id!r} gets no messages by its subscription to {filter!r}: {why}"
                log.warn(text, client_id=stored.client_id, filter=subscription.full_filter, why=refusal.text)
                continue
            session.add_subscription(subscription)
            self._router.subscribe(stored.client_id, subscription)
        if session.subscriptions:
            subscription = next(iter(session.subscriptions.values()))
            version = self._router.announcer.renew(subscription.filter, subscription.share_group)
            self.newest_arrival = version
            self._arrivals.pop(client_id, None)
            self._arrivals[client_id] = version
            if len(self._arrivals) > MAX_ARRIVALS:
                del self._arrivals[next(iter(self._arrivals))]
        return session

    def node_of(self, uid: int) -> NodeIdentity | None:
        """Return another node by its uid; ``None`` for one that this node does not know."""
        return self._router.node_of(uid)

    def routes_known(self) -> Maybe[Sequence[NodeIdentity]]:
        """Wait until the other nodes know the subscriptions of this node's sessions."""
        return self._router.routes_known()

    # Connections

    def attach(self, session: Session, opening: Opening) -> None:
        """Give a session to its connection, while the claim still holds the lock of the client id."""
        session.attach(opening.connection, opening.receive_maximum, opening.max_packet_bytes, opening.topic_aliases)
        opening.attach(session)
        self.connected += 1
        self._router.connected(session)

    def detach(self, session: Session) -> None:
        """Take the connection from a session."""
        self._detach(session)
        self._router.disconnected(session)

    def _detach(self, session: Session) -> None:
        self.connected -= 1
        session.detach()

    # Removing

    def remove(self, session: Session) -> None:
        """Remove a session from the tables."""
        self.by_id.pop(session.client_id, None)
        self.outboxes.pop(session.client_id, None)

    def withdraw(self, session: Session) -> None:
        """Remove a session that is ending, so that nothing is routed to it any more."""
        self.remove(session)
        self._router.withdraw(session)

    def reinstate(self, session: Session) -> None:
        """Undo :meth:`withdraw`: the end of the session was not committed."""
        self.by_id[session.client_id] = session
        if isinstance(session, OutboxSession):
            self.outboxes[session.client_id] = session
        self._router.reinstate(session)

    def drop_copy(self, session: Session) -> None:
        """Drop this node's copy of a session that has a newer owner; the stores are not changed."""
        self.remove(session)
        for subscription in session.subscriptions.values():
            # Not in slices: a claim that reads the stored session adds its subscriptions again in the same turn.
            self._router.unsubscribe(session.client_id, subscription)
        connection = session.connection
        if connection is not None:
            self._detach(session)
        session.end()
        if connection is not None:
            connection.taken_over(None)

    # Session store

    def write(self, write: SessionWrite) -> None:
        """Add a write for the session store to this turn's batch."""
        self._runtime.turn.batch.sessions.append(write)
        self._runtime.turn.touch()


def has_ended(session: Session) -> bool:
    """Return whether a session has ended with its connection, and only waits for a store to commit that."""
    return session.connection is None and session.expiry_s == 0


def _undo_resume(session: Session, expiry_s: int, will: Will | None) -> None:
    """Undo a resumption that was not committed: after its connection closes, the session is as before."""
    session.expiry_s = expiry_s
    session.will = will


def _stored(session: Session) -> StoredSession:
    return StoredSession(
        session.client_id,
        session.expiry_s,
        (),
        session.will,
        session.created_at,
        session.client.username,
        session.version,
    )
