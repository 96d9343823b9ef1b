"""Redistributes the messages of a lost member of a shared subscription to other members (section 4.8.2).

QoS 1: all that are not acknowledged. QoS 2: only those not sent yet. A QoS 2 exchange that has begun stays with its
member (MQTT-4.8.2-4), and ends with it (MQTT-4.8.2-5).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from twisted.logger import Logger

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.session.memory_queue import MemoryQueue
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.broker.session.stored_queue import READ_AT_ONCE, StoredQueue
from kinmqtt.broker.turn.recovery import CommitFailed
from kinmqtt.hooks.awaitables import resolve, run
from kinmqtt_spi.reasons import ReasonCode

if TYPE_CHECKING:
    from kinmqtt.broker.message.delivery import Delivery
    from kinmqtt.broker.routing.router import Router
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session


log = Logger("kinmqtt.redistribution")

MAX_AT_ONCE: Final = 64
"""The most messages of a member that are redistributed at once; more are redistributed in slices."""

MAX_AWAITING_RETRY: Final = 10_000
"""The most messages of ended sessions that wait for a retry because a store fails; further ones are dropped."""


class Redistribution:
    """Gives the messages of a session's shared subscriptions to other members."""

    def __init__(self, runtime: Runtime, router: Router) -> None:
        self._runtime = runtime
        self._router = router
        self._awaiting_retry = 0

    def redistribute_memory(self, session: Session, ends: bool) -> bool:
        """Redistribute the messages that a disconnected session has in memory; returns whether there were any.

        Members without a connection get messages only where the session ``ends``.
        """
        redistributed: list[Delivery] = []
        if not any(subscription.share_group for subscription in session.subscriptions.values()):
            return False
        if ends and not session.persistent and len(session.outgoing) + session.queue.count > MAX_AT_ONCE:
            self._start_slices(session)
            return True
        for packet_id, delivery in session.outgoing:
            if delivery.qos == 1 and self._deliver_to_another(
                session, delivery.shared_filter, delivery.publication, ends
            ):
                session.give_away(packet_id, delivery)
                redistributed.append(delivery)
        if isinstance(session.queue, MemoryQueue):
            for delivery in list(session.queue.deliveries):
                if self._deliver_to_another(session, delivery.shared_filter, delivery.publication, ends):
                    session.queue.take_out(delivery)
                    redistributed.append(delivery)
        if redistributed and not session.persistent:
            # A persistent session is reloaded with its messages if the commit fails; these would be lost.
            self._runtime.turn.batch.on_commit_failed.append(
                lambda reason: self._retry_later(session, redistributed, ends)
            )
        return bool(redistributed)

    def _start_slices(self, session: Session) -> None:
        """Redistribute the many messages of a session that ends with its connection, in the background."""
        held = [delivery for _, delivery in session.outgoing if delivery.qos == 1]
        if isinstance(session.queue, MemoryQueue):
            held += session.queue.deliveries
        held = [delivery for delivery in held if delivery.shared_filter is not None]
        run(self._give_in_slices(session, held)).addErrback(
            lambda failure: log.failure(
                "the messages of {client_id!r} could not be redistributed", failure, client_id=session.client_id
            )
        )

    async def _give_in_slices(self, session: Session, held: list[Delivery]) -> None:
        turn = self._runtime.turn
        slices = self._runtime.slices
        redistributed: list[Delivery] = []
        batch = None
        for delivery in held:
            if slices.is_over():
                await slices.turn()
            if not self._deliver_to_another(
                session, delivery.shared_filter, delivery.publication, ends=True, gone=True
            ):
                continue
            if turn.batch is not batch:
                batch = turn.batch
                redistributed = []
                batch.on_commit_failed.append(partial(self._commit_failed, session, redistributed))
                turn.touch()
            redistributed.append(delivery)

    def _commit_failed(self, session: Session, redistributed: list[Delivery], reason: ReasonCode) -> None:
        self._retry_later(session, redistributed, ends=True)

    def _retry_later(self, session: Session, redistributed: list[Delivery], ends: bool) -> None:
        """Schedule a retry; where too much waits for one already, drop the messages."""
        runtime = self._runtime
        size_bytes = sum(delivery.size_bytes for delivery in redistributed)
        too_much = runtime.queued.size_bytes + size_bytes > runtime.limits.max_all_queued_bytes
        if too_much or self._awaiting_retry + len(redistributed) > MAX_AWAITING_RETRY:
            for delivery in redistributed:
                self._runtime.drop(session.client_id, delivery.publication.message, "store_failed")
            return
        self._awaiting_retry += len(redistributed)
        runtime.queued.size_bytes += size_bytes
        runtime.clock.later(RETRY_S, partial(self._retry, session, redistributed, ends))

    def _retry(self, session: Session, redistributed: list[Delivery], ends: bool) -> None:
        self._awaiting_retry -= len(redistributed)
        self._runtime.queued.size_bytes -= sum(delivery.size_bytes for delivery in redistributed)
        turn = self._runtime.turn
        turn.touch()
        taken = [
            delivery
            for delivery in redistributed
            if self._deliver_to_another(session, delivery.shared_filter, delivery.publication, ends, gone=True)
        ]
        if taken:
            turn.batch.on_commit_failed.append(lambda reason: self._retry_later(session, taken, ends))

    async def redistribute_stored(self, session: Session, ends: bool) -> None:
        """Redistribute the messages in the queue store; stops if the client comes back meanwhile.

        The caller holds the lock of the client id: two readers of one queue would give its messages away twice.
        Raises :class:`~kinmqtt.broker.turn.recovery.CommitFailed` where a store fails; the queue must then be
        reloaded.
        """
        waiting = session.queue
        if not isinstance(waiting, StoredQueue) or not any(s.share_group for s in session.subscriptions.values()):
            return
        cursor = waiting.cursor
        while session.connection is None:
            try:
                entries = await resolve(self._runtime.stores.queue.read(session.client_id, cursor, READ_AT_ONCE))
            except Exception:
                log.failure("the queue of {client_id!r} can't be read", client_id=session.client_id)
                raise CommitFailed(ReasonCode.SERVER_UNAVAILABLE) from None
            if not entries or session.connection is not None:
                return
            for entry in entries:
                cursor = entry.sequence
                if self._deliver_to_another(session, entry.shared_filter, Publication.of(entry.message), ends):
                    waiting.take_out(entry)
            await self._runtime.turn.committed()

    def _deliver_to_another(
        self,
        session: Session,
        shared_filter: str | None,
        publication: Publication,
        ends: bool,
        gone: bool = False,
    ) -> bool:
        """Deliver a message to another member of its shared subscription; ``False`` if none accepts it."""
        if shared_filter is None:
            return False
        return self._router.deliver_to_another_member(
            session.client_id, shared_filter, publication, connected=not ends, gone=gone
        )
