"""What a lost member of a shared subscription held is given to another (section 4.8.2).

QoS 1: everything that was not acknowledged. QoS 2: only what was not sent yet; an exchange that has begun stays with
its member (MQTT-4.8.2-4), and ends with it (MQTT-4.8.2-5).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.session.memory_queue import WaitingHere
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.session.stored_queue import READ_AT_ONCE, WaitingInStore
from kinmqtt.broker.turn.turn import CommitFailed
from kinmqtt.hooks.awaitables import run, settle
from kinmqtt_spi.reasons import ReasonCode

if TYPE_CHECKING:
    from kinmqtt.broker.message.delivery import Delivery
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


log = Logger("kinmqtt.redistribution")

FEW: Final = 64
"""Messages of one member that are given at once; more are given in slices."""

MAX_OWED: Final = 10_000
"""Messages of members that are gone for good, which wait for a store that fails; what comes on top is lost."""


class Redistribution:
    """Gives the messages of one session's shared subscriptions to others of their groups."""

    def __init__(self, runtime: Runtime, router: Router) -> None:
        self._runtime = runtime
        self._router = router
        self._owed = 0

    def member_left(self, session: Session, ends: bool) -> bool:
        """A session has lost its connection; with ``ends`` its own end is near, and members that are away do too.

        Answers whether anything was given.
        """
        given: list[Delivery] = []
        if not any(subscription.share_group for subscription in session.subscriptions.values()):
            return False
        if ends and not session.kept and len(session.outgoing) + session.waiting.count > FEW:
            self._give_later(session)
            return True
        for packet_id, delivery in session.outgoing:
            if delivery.qos == 1 and self._gives(session, delivery.shared_filter, delivery.publication, ends):
                session.hand_on(packet_id, delivery)
                given.append(delivery)
        if isinstance(session.waiting, WaitingHere):
            for delivery in list(session.waiting.deliveries):
                if self._gives(session, delivery.shared_filter, delivery.publication, ends):
                    session.waiting.take_out(delivery)
                    given.append(delivery)
        if given and not session.kept:
            # Nobody holds it any more if it is not kept; what a kept session held comes back to it.
            self._runtime.turn.batch.otherwise.append(lambda reason: self._again_later(session, given, ends))
        return bool(given)

    def _give_later(self, session: Session) -> None:
        """The same for a member that ends with its connection and held very many: in slices, when it is gone."""
        held = [delivery for _, delivery in session.outgoing if delivery.qos == 1]
        if isinstance(session.waiting, WaitingHere):
            held += session.waiting.deliveries
        held = [delivery for delivery in held if delivery.shared_filter is not None]
        run(self._give_in_slices(session, held)).addErrback(
            lambda failure: log.failure(
                "what {client_id!r} held could not be given to others", failure, client_id=session.client_id
            )
        )

    async def _give_in_slices(self, session: Session, held: list[Delivery]) -> None:
        turn = self._runtime.turn
        slices = self._runtime.slices
        given: list[Delivery] = []
        batch = None
        for delivery in held:
            if slices.is_over():
                await slices.turn()
            if not self._gives(session, delivery.shared_filter, delivery.publication, ends=True, gone=True):
                continue
            if turn.batch is not batch:
                batch = turn.batch
                given = []
                batch.otherwise.append(partial(self._not_given, session, given))
                turn.touch()
            given.append(delivery)

    def _not_given(self, session: Session, given: list[Delivery], reason: ReasonCode) -> None:
        self._again_later(session, given, ends=True)

    def _again_later(self, session: Session, given: list[Delivery], ends: bool) -> None:
        runtime = self._runtime
        size_bytes = sum(delivery.size_bytes for delivery in given)
        too_much = runtime.waiting.size_bytes + size_bytes > runtime.limits.max_all_queued_bytes
        if too_much or self._owed + len(given) > MAX_OWED:
            for delivery in given:
                self._runtime.drop(session.client_id, delivery.publication.message, "store_failed")
            return
        self._owed += len(given)
        runtime.waiting.size_bytes += size_bytes
        runtime.clock.later(RETRY_S, partial(self._again, session, given, ends))

    def _again(self, session: Session, given: list[Delivery], ends: bool) -> None:
        self._owed -= len(given)
        self._runtime.waiting.size_bytes -= sum(delivery.size_bytes for delivery in given)
        turn = self._runtime.turn
        turn.touch()
        taken = [
            delivery
            for delivery in given
            if self._gives(session, delivery.shared_filter, delivery.publication, ends, gone=True)
        ]
        if taken:
            turn.batch.otherwise.append(lambda reason: self._again_later(session, taken, ends))

    async def queue_left(self, session: Session, ends: bool) -> None:
        """The same for what waits in the queue store; stops where the client comes back in the meantime.

        Whoever calls this holds the lock of the client id: two that read one queue would give it away twice. Raises
        :class:`~kinmqtt.broker.turn.turn.CommitFailed` where a store fails; the queue is then to be read anew.
        """
        waiting = session.waiting
        if not isinstance(waiting, WaitingInStore) or not any(s.share_group for s in session.subscriptions.values()):
            return
        cursor = waiting.cursor
        while session.connection is None:
            try:
                entries = await settle(self._runtime.stores.queue.read(session.client_id, cursor, READ_AT_ONCE))
            except Exception:
                log.failure("the queue of {client_id!r} can't be read", client_id=session.client_id)
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE) from None
            if not entries or session.connection is not None:
                return
            for entry in entries:
                cursor = entry.sequence
                if self._gives(session, entry.shared_filter, Publication.of(entry.message), ends):
                    waiting.take_out(entry)
            await self._runtime.turn.committed()

    def _gives(
        self,
        session: Session,
        shared_filter: str | None,
        publication: Publication,
        ends: bool,
        gone: bool = False,
    ) -> bool:
        if shared_filter is None:
            return False
        return self._router.to_another_member(
            session.client_id, shared_filter, publication, connected=not ends, gone=gone
        )
