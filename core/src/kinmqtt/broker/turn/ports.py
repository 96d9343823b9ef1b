"""Interfaces of the layers above a turn: peers (connections) and recipients (sessions).

Both are native base classes, not protocols: attributes have fixed offsets and methods are called through a vtable,
so the interfaces cost nothing on the message path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from twisted.internet.defer import Deferred

from kinmqtt.broker.buffers import BufferOwner
from kinmqtt.broker.turn.turn_buffer import TurnBuffer
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import Scope
from kinmqtt_spi.values import Client

if TYPE_CHECKING:
    from collections.abc import Set

    from kinmqtt.broker.message.delivery import Delivery


class Peer(BufferOwner):
    """A connection, as sessions and turns use it."""

    __slots__ = ("congested", "turn_buffer", "waits_for_capacity")

    def __init__(self) -> None:
        super().__init__()
        self.congested = False
        """Whether so much output waits that only acknowledgements and other answers may be added."""
        self.turn_buffer: TurnBuffer = TurnBuffer()
        """The packets of this turn."""
        self.waits_for_capacity: list[tuple[int, Deferred[None]]] | None = None
        """Deferreds that fire when the client can take that many more messages; ``None`` if there are none."""

    @property
    def name(self) -> str:
        """The client id, if known, and the address, for the log."""
        raise NotImplementedError

    def is_closed(self) -> bool:
        """Whether the connection has ended; pending work for it must stop."""
        raise NotImplementedError

    def is_of(self, client_ids: Set[str]) -> bool:
        """Whether the connection belongs to one of these clients."""
        raise NotImplementedError

    def send(self, packet: bytes) -> None:
        """Send a packet with this turn's output."""
        raise NotImplementedError

    def send_acknowledgement(self, packet: bytes, completes: bool) -> None:
        """Send an acknowledgement that waited for a commit; ``completes``: it is the last one for its message."""
        raise NotImplementedError

    def withhold_acknowledgement(self, reason: ReasonCode) -> None:
        """Disconnect because a store did not commit a message."""
        raise NotImplementedError

    def wait_for_capacity(self, messages: int) -> Deferred[None]:
        """Fires when the client can take about that many more messages, or is gone."""
        raise NotImplementedError

    def capacity_available(self) -> None:
        """Notify those waiting for capacity that the session's queue became shorter."""
        raise NotImplementedError

    def fail(self, reason: ReasonCode, text: str, line: str = "") -> None:
        """Close from the broker's side, and send the reason where the protocol can carry it."""
        raise NotImplementedError

    def taken_over(self, by: Client | None) -> None:
        """Disconnect because another connection uses this client id now."""
        raise NotImplementedError

    def authorization_changed(self, scope: Scope) -> None:
        """Drop cached authorizer answers if the scope covers the client."""
        raise NotImplementedError

    def count_routes(self) -> int:
        """Add the client's publishes since the last call to the traffic ledger; returns the number of topics."""
        raise NotImplementedError


class CommitWatcher(Peer):
    """In the place of a connection: notes whether messages are committed that take several turns."""

    __slots__ = ("failure",)

    def __init__(self) -> None:
        super().__init__()
        self.failure: ReasonCode | None = None
        """Why a store did not commit one of them."""

    @property
    def name(self) -> str:
        """See :attr:`Peer.name`."""
        return "a plugin"

    def is_closed(self) -> bool:
        """See :meth:`Peer.is_closed`."""
        return False

    def is_of(self, client_ids: Set[str]) -> bool:
        """See :meth:`Peer.is_of`."""
        return False

    def withhold_acknowledgement(self, reason: ReasonCode) -> None:
        """See :meth:`Peer.withhold_acknowledgement`."""
        self.failure = reason


class Recipient:
    """A session, as turns use it."""

    __slots__ = ()

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        raise NotImplementedError

    def transmit(self, packet_id: int, delivery: Delivery) -> None:
        """Send a delivery that has been committed."""
        raise NotImplementedError

    def wants_pump(self) -> None:
        """Schedule :meth:`pump` for the end of the turn."""
        raise NotImplementedError

    def pump(self) -> None:
        """Send queued messages as far as the inflight window allows."""
        raise NotImplementedError
