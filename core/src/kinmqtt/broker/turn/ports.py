"""What a turn knows of those it works for: peers, which are connections, and recipients, which are sessions.

Both are native base classes, not protocols: their attributes have fixed offsets and their methods are called through
a table, so that the message path pays nothing for not knowing the classes above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from kinmqtt.broker.buffers import BufferOwner
from kinmqtt.broker.turn.outbox import Outbox
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Scope
from kinmqtt_spi.values import Client

if TYPE_CHECKING:
    from collections.abc import Set

    from kinmqtt.broker.message.delivery import Delivery


class Peer(BufferOwner):
    """A connection, as sessions and turns know it."""

    __slots__ = ("congested", "outbox", "waits_for_capacity")

    def __init__(self) -> None:
        super().__init__()
        self.congested = False
        """Whether so much waits for the socket that nothing may be added but answers."""
        self.outbox: Outbox = Outbox()
        """Where the packets of this turn gather."""
        self.waits_for_capacity: list[tuple[int, Deferred[None]]] | None = None
        """What waits until the client can take that many messages more; ``None`` where nothing does."""

    @property
    def name(self) -> str:
        """For the log: the client id where there is one, and the address."""
        raise NotImplementedError

    def is_closed(self) -> bool:
        """Whether the connection has ended; what was begun for it must not go on."""
        raise NotImplementedError

    def is_of(self, client_ids: Set[str]) -> bool:
        """Whether the connection belongs to one of some clients."""
        raise NotImplementedError

    def send(self, packet: bytes) -> None:
        """Send a packet with everything else of this turn."""
        raise NotImplementedError

    def send_acknowledgement(self, packet: bytes) -> None:
        """Send an acknowledgement that waited for a commit."""
        raise NotImplementedError

    def withhold_acknowledgement(self, reason: ReasonCode) -> None:
        """Disconnect, because a store did not keep what was to be acknowledged."""
        raise NotImplementedError

    def wait_for_capacity(self, messages: int) -> Deferred[None]:
        """Fires when the client can take about that many messages more, or is gone."""
        raise NotImplementedError

    def capacity_available(self) -> None:
        """The session's queue has become shorter."""
        raise NotImplementedError

    def fail(self, reason: ReasonCode, text: str, line: str = "") -> None:
        """Close from the broker's side, with the reason where the protocol can carry it."""
        raise NotImplementedError

    def taken_over(self, by: Client | None) -> None:
        """Another connection has this client id now."""
        raise NotImplementedError

    def authorization_changed(self, scope: Scope) -> None:
        """Forget what authorizers answered, where the client is within a scope."""
        raise NotImplementedError

    def count_routes(self) -> int:
        """Add up what the client has published since the last time; answers how many topics were looked at."""
        raise NotImplementedError


class Recipient:
    """A session, as turns know it."""

    __slots__ = ()

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        raise NotImplementedError

    def transmit(self, packet_id: int, delivery: Delivery) -> None:
        """Send a delivery that has been committed."""
        raise NotImplementedError

    def wants_pump(self) -> None:
        """Have :meth:`pump` called when the turn ends."""
        raise NotImplementedError

    def pump(self) -> None:
        """Send what waits in the queue, as far as the window goes."""
        raise NotImplementedError
