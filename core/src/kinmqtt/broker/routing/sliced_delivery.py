"""Delivers a message to very many subscribers in slices, skipping those who have unsubscribed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.routing.deliver import deliver
from kinmqtt.broker.routing.fanout import Fanout
from kinmqtt.broker.routing.target import Target, target_of

if TYPE_CHECKING:
    from kinmqtt.broker.routing.fanouts import Fanouts
    from kinmqtt.broker.runtime import Runtime
    from kinmqtt.broker.session.session import Session
    from kinmqtt.broker.turn.ports import Peer

PIECE: Final = 32
"""The number of deliveries between two checks of the clock."""


class SlicedDelivery:
    """The progress of one message's delivery.

    Delivers to all that were subscribed when it was published and are subscribed still (MQTT-3.10.4-2).
    """

    __slots__ = (
        "_connection",
        "_fanout",
        "_fanouts",
        "_next",
        "_publication",
        "_runtime",
        "_session_of",
        "_targets",
        "accepted",
        "groups",
    )

    def __init__(
        self,
        runtime: Runtime,
        fanouts: Fanouts,
        session_of: Callable[[str], Session | None],
        publication: Publication,
        fanout: Fanout,
        connection: Peer | None,
    ) -> None:
        """``connection`` is the publisher's, if the message is to be acknowledged."""
        self._runtime = runtime
        self._fanouts = fanouts
        self._session_of = session_of
        self._publication = publication
        self._fanout = fanout
        self._connection = connection
        self.groups = fanout.groups
        self.accepted = True
        """Whether all queues have accepted it so far."""
        self._next = 0
        self._targets: Sequence[Target] = fanout.begin_slices(publication)
        audience = publication.audience
        without = None if audience is None else audience.without
        if without:
            self._targets = [each for each in self._targets if each.session.client_id not in without]

    def deliver_slice(self) -> bool:
        """Deliver until the slice is over; returns whether the delivery is complete."""
        fanout = self._fanout
        publication = self._publication
        targets = self._targets
        slices = self._runtime.slices
        while self._next < len(targets):
            piece = targets[self._next : self._next + PIECE]
            self._next += PIECE  # Before delivering: a delivery that raises must not be repeated.
            if self._fanouts.is_current(fanout):
                self.accepted &= fanout.deliver_to(piece, publication)
            else:
                for target in piece:
                    self.accepted &= self._deliver_if_subscribed(target)
            if slices.is_over() and self._next < len(targets):
                if self._connection is not None:
                    self._runtime.turn.batch.unfinished_publishers.append(self._connection)
                return False
        fanout.finish_delivery()
        return True

    def _deliver_if_subscribed(self, target: Target) -> bool:
        """Deliver to a session if it still has a matching subscription; ``False`` if its queue refused."""
        session = target.session
        if self._session_of(session.client_id) is not session:
            return True
        subscriptions = session.subscriptions
        wanted = [subscriptions[s.full_filter] for s in target.subscriptions if s.full_filter in subscriptions]
        if not wanted:
            return True
        return deliver(self._runtime, target_of(session, wanted), self._publication)
