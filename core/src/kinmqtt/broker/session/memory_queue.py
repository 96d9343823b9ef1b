"""The queue of a non-persistent session: in memory."""

from __future__ import annotations

from collections import deque
from typing import final

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt.broker.session.queue import SessionQueue
from kinmqtt.broker.session.receive_rights import may_receive


@final
class MemoryQueue(SessionQueue):
    """A queue in memory; it lasts as long as the session's connection."""

    __slots__ = ("_deliveries", "_expiring_at")

    def __init__(self, runtime: Runtime, session: QueueOwner) -> None:
        super().__init__(runtime, session)
        self._deliveries: deque[Delivery] | None = None
        self._expiring_at: float | None = None
        """The earliest time at which a queued message may expire, in seconds since the epoch."""

    @property
    def deliveries(self) -> deque[Delivery]:
        """The queued deliveries, in order."""
        if self._deliveries is None:
            self._deliveries = deque()
        return self._deliveries

    def overflow_action(self, publication: Publication) -> OverflowAction | None:
        """See :meth:`SessionQueue.overflow_action`; removes expired messages first."""
        if self.is_full:
            self._remove_expired()
        return super().overflow_action(publication)

    def add(self, delivery: Delivery, action: OverflowAction | None) -> None:
        """Append a delivery; an overflow ``action`` says which queued message is dropped for it."""
        publication = delivery.publication
        self.deliveries.append(delivery)
        self._added(delivery.size_bytes)
        expires_at = publication.expires_at
        if expires_at is not None and (self._expiring_at is None or expires_at < self._expiring_at):
            self._expiring_at = expires_at
        if action is not None:
            self._make_room(action)
        self._notify_queued(publication)

    def take_out(self, delivery: Delivery) -> None:
        """Remove a delivery that another session takes over."""
        self.deliveries.remove(delivery)
        self.removed(delivery.size_bytes)

    def pump(self) -> None:
        """See :meth:`SessionQueue.pump`."""
        session = self._session
        deliveries = self.deliveries
        now = self._runtime.clock.now()
        guarded = self._runtime.hooks.authorize_receive.active
        while deliveries and session.can_send:
            delivery = deliveries.popleft()
            publication = delivery.publication
            self.removed(delivery.size_bytes)
            # `stored` is a second copy of the payload: it is made only where it is needed.
            if publication.has_expired(now):
                self._drop_expired(publication.stored)
            elif not guarded or may_receive(self._runtime, session, publication.stored):
                session.transmit(session.assign(delivery), delivery)

    def _make_room(self, action: OverflowAction) -> None:
        deliveries = self.deliveries
        topic = (
            deliveries[-1].publication.publish.topic if action is OverflowAction.QUEUE_DROPPING_SAME_TOPIC else None
        )
        while self._exceeds_limits:
            older = range(len(deliveries) - 1)
            same = (n for n in older if deliveries[n].publication.publish.topic == topic)
            position = 0 if topic is None else next(same, 0)
            victim = deliveries[position]
            del deliveries[position]
            self.removed(victim.size_bytes)
            overflow.drop(self._runtime, self._session, victim.publication.message)

    def _remove_expired(self) -> None:
        """Drop the queued messages that have expired."""
        now = self._runtime.clock.now()
        if self._expiring_at is None or now < self._expiring_at:
            return
        good: deque[Delivery] = deque()
        for delivery in self.deliveries:
            publication = delivery.publication
            if publication.has_expired(now):
                self.removed(delivery.size_bytes)
                self._drop_expired(publication.stored)
            else:
                good.append(delivery)
        self._deliveries = good
        moments = [d.publication.expires_at for d in good if d.publication.expires_at is not None]
        self._expiring_at = min(moments, default=None)
