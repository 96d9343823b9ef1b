"""Routes a message that some sessions may have already: after another node's end, or for a repeated QoS 2 packet."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from attrs import frozen
from twisted.internet.defer import DeferredList

from kinmqtt.broker.locks import ClientIdLocks
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.broker.routing.target import Target, target_of
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.queue import KNOWN_S
from kinmqtt_spi.topics import matches

if TYPE_CHECKING:
    from kinmqtt.broker.forwarding.forwarder import Forwarder
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


MAX_RESENT: Final = 100_000
"""How many messages that were sent again are remembered."""


@frozen(slots=True)
class Resent:
    """What became of a message that some sessions may have already."""

    accepted: bool
    """Whether no queue refused it."""
    moved: tuple[str, ...] = ()
    """The clients whose sessions lack it, and have gone to another node meanwhile."""


ASKED_AT_ONCE: Final = 500
"""For how many clients the queue store is asked at once whether it knows a message."""

_NOBODY: Final[frozenset[str]] = frozenset()

_DELIVERED: Final = Resent(accepted=True)


class Resender:
    """Delivers to the persistent sessions that do not have a message yet, on this node and on the others.

    Other sessions are left out: they got it before, or they have ended with their node.
    """

    def __init__(
        self, runtime: Runtime, router: Router, forwarder: Forwarder, session_of: Callable[[str], Session | None]
    ) -> None:
        self._runtime = runtime
        self._router = router
        self._forwarder = forwarder
        self._session_of = session_of
        self.resent: dict[tuple[int, int], float] = {}
        """By node uid and counter of a message that came here as one that sessions may have: when, in this order.

        Its first copy may come later, if it waited for a link: then that is the one that they may have.
        """
        self._locks = ClientIdLocks()
        """By client id: one message after the other, each until it is committed. Else two copies of a message that
        come at once would not know of each other."""

    def _note(self, publication: Publication) -> None:
        now = self._runtime.clock.monotonic()
        resent = self.resent
        resent[(publication.uid, publication.counter)] = now
        while len(resent) > MAX_RESENT or next(iter(resent.values())) < now - KNOWN_S:
            del resent[next(iter(resent))]

    @property
    def is_alone(self) -> bool:
        """Whether there is no other node."""
        return self._forwarder.is_alone

    def follow(self, publication: Publication, client_id: str) -> None:
        """Send a message to a client's session, which has moved; the message's ticket waits for its new owner."""
        self._forwarder.follow(publication, client_id)

    async def route(self, publication: Publication) -> Routed:
        """Route a message again, under the id that it has; other nodes answer to its ticket."""
        accepted = await self._deliver_or_follow(publication)
        accepted &= self._router.forward_again(publication)
        return Routed.DELIVERED if accepted else Routed.REFUSED

    async def route_repeated(self, publication: Publication) -> Routed:
        """Route a message that its publisher sends again: nobody knows who got it before.

        A shared subscription gets it once more, because its member may not have committed it.
        """
        accepted = await self._deliver_or_follow(publication)
        accepted &= self._router.forward_repeated(publication)
        return Routed.DELIVERED if accepted else Routed.REFUSED

    async def _deliver_or_follow(self, publication: Publication) -> bool:
        """Deliver to this node's sessions that lack the message, and send it after those that move meanwhile.

        Returns ``False`` if a queue refused it. What was not committed is noted in the message's ticket.
        """
        try:
            resent = await self.deliver_here(publication)
        except CommitFailed as error:
            ticket_of(publication).failure = error.reason
            return True
        for client_id in resent.moved:
            self._forwarder.follow(publication, client_id)
        return resent.accepted

    async def deliver_here(self, publication: Publication) -> Resent:
        """Deliver to this node's sessions that lack the message; raises CommitFailed."""
        return await self._to_those_without(publication, self._router.fanout(publication.publish.topic).targets)

    async def deliver_to_session(self, publication: Publication, session: Session) -> Resent:
        """Deliver to one session, if it lacks the message and has a subscription for it; raises CommitFailed."""
        return await self.deliver_to_sessions(publication, (session,))

    async def deliver_to_sessions(self, publication: Publication, sessions: Sequence[Session]) -> Resent:
        """Deliver to several sessions, each as :meth:`deliver_to_session` does."""
        targets = [_target(session, publication) for session in sessions]
        return await self._to_those_without(publication, [each for each in targets if each is not None])

    async def deliver_missing(self, publications: Sequence[Publication], session: Session) -> int:
        """Deliver the messages that a session of this node lacks, in their order and with one commit.

        Returns how many its queue refused. Raises CommitFailed, also if the session has moved meanwhile.
        """
        client_id = session.client_id
        refused = 0
        await self._locks.acquire(client_id)
        try:
            await self._runtime.turn.drained()
            known = await resolve(self._runtime.stores.queue.known(client_id, {each.id for each in publications}))
            self._runtime.turn.touch()
            for publication in publications:
                self._note(publication)
                target = _target(session, publication)
                if target is not None and publication.id not in known and publication.publish.qos:
                    refused += not deliver(self._runtime, target, publication)
                    self._runtime.turn.batch.note_followed(publication.id)
            await self._runtime.turn.committed()
        finally:
            self._locks.release(client_id)
        if not self._is_here(session):
            raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE)
        return refused

    async def _to_those_without(self, publication: Publication, targets: Sequence[Target]) -> Resent:
        """Deliver to the persistent sessions that lack the message, and wait until they have it."""
        turn = self._runtime.turn
        kept = [target for target in targets if target.session.persistent and target.qos and publication.publish.qos]
        if not kept:
            return _DELIVERED
        self._note(publication)
        accepted = True
        moved: list[str] = []
        written: list[Session] = []
        client_ids = sorted([target.session.client_id for target in kept])
        locked: list[str] = []
        try:
            for client_id in client_ids:
                await self._locks.acquire(client_id)
                locked.append(client_id)
            # What was delivered before may not be committed yet; then the store would not know it.
            await turn.drained()
            known = await self._those_with(publication, client_ids)
            for target in kept:
                session = target.session
                if session.client_id in known:
                    continue
                if not self._is_here(session):
                    moved.append(session.client_id)
                    continue
                accepted &= deliver(self._runtime, target, publication)
                written.append(session)
                turn.batch.note_followed(publication.id)
            if written:
                await turn.committed()
        finally:
            for client_id in locked:
                self._locks.release(client_id)
        # Writes for a session that another node has claimed are refused, and the others are committed.
        moved += [session.client_id for session in written if not self._is_here(session)]
        return Resent(accepted, tuple(moved))

    def _is_here(self, session: Session) -> bool:
        return self._session_of(session.client_id) is session

    async def _those_with(self, publication: Publication, client_ids: Sequence[str]) -> frozenset[str]:
        """Return the clients whose queue knows a message; a store is asked for all of them at once."""
        if len(client_ids) == 1:
            has = await self._has(client_ids[0], publication)
            return frozenset(client_ids) if has else _NOBODY
        found = []
        for at in range(0, len(client_ids), ASKED_AT_ONCE):
            some = client_ids[at : at + ASKED_AT_ONCE]
            asked = [run(self._has(each, publication)) for each in some]
            answers: list[tuple[bool, Any]] = await DeferredList(asked, consumeErrors=True)
            for client_id, (succeeded, answer) in zip(some, answers, strict=True):
                if not succeeded:
                    answer.raiseException()
                if answer:
                    found.append(client_id)
        return frozenset(found)

    async def _has(self, client_id: str, publication: Publication) -> bool:
        known = await resolve(self._runtime.stores.queue.known(client_id, {publication.id}))
        self._runtime.turn.touch()
        return bool(known)

    def kept_here(self, topic: str) -> frozenset[str]:
        """Return the client ids of this node's persistent sessions that want a topic's messages above QoS 0."""
        targets = self._router.fanout(topic).targets
        return frozenset([each.session.client_id for each in targets if each.session.persistent and each.qos])

    async def who_has(self, publication: Publication, client_ids: Iterable[str]) -> frozenset[str]:
        """Return those of some clients whose session has a message already."""
        await self._runtime.turn.drained()
        return await self._those_with(publication, sorted(client_ids))


def _target(session: Session, publication: Publication) -> Target | None:
    """Return a session with its subscriptions for a message; ``None`` if it has none.

    One that has only a shared subscription for it was chosen among its members before it moved.
    """
    topic = publication.publish.topic
    matching = [each for each in session.subscriptions.values() if matches(each.filter, topic)]
    wanted = [each for each in matching if each.share_group is None] or matching[:1]
    return target_of(session, wanted) if wanted else None
