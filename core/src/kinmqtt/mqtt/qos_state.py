"""The QoS state machines of one session, for both directions, as tables (section 4.3).

Without I/O. A delivery is known only by its packet identifier and its stage. Identifiers belong to the session, so
this state outlives a connection.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import Enum, IntEnum
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from mypy_extensions import mypyc_attr

from kinmqtt.mqtt.errors import LocalError, ProtocolError
from kinmqtt.mqtt.packets import PacketType
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.values import MessageId

MAX_PACKET_ID: Final = 65_535


class FlightStage(IntEnum):
    """The acknowledgement that an outgoing message waits for."""

    PUBACK = 0
    PUBREC = 1
    PUBCOMP = 2


class Effect(Enum):
    """The effect of an acknowledgement."""

    COMPLETE = "complete"
    """The delivery is complete and its packet identifier is free."""
    RELEASE = "release"
    """Store the PUBREC, then send PUBREL (MQTT-4.3.3-4)."""
    RELEASE_AGAIN = "release again"
    """A repeated PUBREC: send PUBREL again."""
    REFUSED = "refused"
    """The receiver refused the message (0x80 and above), so its delivery ends (MQTT-4.4.0-2)."""
    UNKNOWN = "unknown"
    """No delivery has this identifier: answer PUBREC with PUBREL 0x92, and the others with nothing."""
    VIOLATION = "violation"
    """An acknowledgement of another QoS than the message's: a protocol error."""


# Constants for the enumeration's members: access to a member would cost more than the rest of the lookup.
COMPLETE: Final = Effect.COMPLETE
RELEASE: Final = Effect.RELEASE
RELEASE_AGAIN: Final = Effect.RELEASE_AGAIN
REFUSED: Final = Effect.REFUSED
UNKNOWN: Final = Effect.UNKNOWN
VIOLATION: Final = Effect.VIOLATION
AWAITS_PUBACK: Final = FlightStage.PUBACK
AWAITS_PUBREC: Final = FlightStage.PUBREC
AWAITS_PUBCOMP: Final = FlightStage.PUBCOMP
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_PUBCOMP: Final = PacketType.PUBCOMP

OUTGOING: Final[Mapping[tuple[FlightStage | None, PacketType], Effect]] = MappingProxyType(
    {
        (FlightStage.PUBACK, PacketType.PUBACK): Effect.COMPLETE,
        (FlightStage.PUBACK, PacketType.PUBREC): Effect.VIOLATION,
        (FlightStage.PUBACK, PacketType.PUBCOMP): Effect.VIOLATION,
        (FlightStage.PUBREC, PacketType.PUBACK): Effect.VIOLATION,
        (FlightStage.PUBREC, PacketType.PUBREC): Effect.RELEASE,
        (FlightStage.PUBREC, PacketType.PUBCOMP): Effect.VIOLATION,
        (FlightStage.PUBCOMP, PacketType.PUBACK): Effect.VIOLATION,
        (FlightStage.PUBCOMP, PacketType.PUBREC): Effect.RELEASE_AGAIN,
        (FlightStage.PUBCOMP, PacketType.PUBCOMP): Effect.COMPLETE,
        (None, PacketType.PUBACK): Effect.UNKNOWN,
        (None, PacketType.PUBREC): Effect.UNKNOWN,
        (None, PacketType.PUBCOMP): Effect.UNKNOWN,
    }
)
"""The effect for each stage (``None``: no such identifier) and acknowledgement, without its reason code."""

REFUSABLE: Final = frozenset({Effect.COMPLETE, Effect.RELEASE})
"""Effects that a failing reason code turns into REFUSED."""


_PAGES: Final[list[list[bytes] | None]] = [None] * 256
"""Packet identifiers as bytes, 256 in each page, created on first use: at most 3 MB."""


def written_id(packet_id: int) -> bytes:
    """Return a packet identifier as encoded in a packet; cached, because it is needed very often."""
    page = _PAGES[packet_id >> 8]
    if page is None:
        first = packet_id & 0xFF00
        page = _PAGES[packet_id >> 8] = [each.to_bytes(2, "big") for each in range(first, first + 256)]
    return page[packet_id & 0xFF]


@mypyc_attr(acyclic=True)  # Never part of a reference cycle: the garbage collector need not look at it.
class Flight:
    """An inflight message; only its stage is used here."""

    __slots__ = ("stage",)

    def __init__(self, stage: FlightStage) -> None:
        self.stage = stage


F = TypeVar("F", bound=Flight)


class Outgoing(Generic[F]):
    """Messages sent and not yet acknowledged, by packet identifier, in the order of sending."""

    __slots__ = ("_last_id", "flights", "window")

    def __init__(self, window: int) -> None:
        self.window = window
        """The receiver's receive maximum (section 4.9): how many messages may be in flight."""
        self.flights: dict[int, F] = {}
        self._last_id = 0

    @property
    def has_capacity(self) -> bool:
        """Tell whether another message may be sent now (MQTT-4.9.0-2)."""
        return len(self.flights) < self.window

    def assign(self, flight: F) -> int:
        """Assign an unused packet identifier to a message (MQTT-2.2.1-4)."""
        packet_id = self._last_id
        flights = self.flights
        for _ in range(MAX_PACKET_ID):
            packet_id = packet_id + 1 if packet_id < MAX_PACKET_ID else 1
            if packet_id not in flights:
                self._last_id = packet_id
                flights[packet_id] = flight
                self.began(flight)
                return packet_id
        raise LocalError("all packet identifiers are in use: the window was exceeded")

    def restore(self, packet_id: int, flight: F) -> None:
        """Restore a message that was in flight before a restart, in the old order."""
        self.forget(packet_id)
        self.flights[packet_id] = flight
        self._last_id = packet_id
        self.began(flight)

    def clear(self) -> None:
        """Remove all messages."""
        for flight in self.flights.values():
            self.ended(flight)
        self.flights.clear()

    def acknowledge(self, packet_id: int, packet_type: PacketType, reason: int) -> tuple[F | None, Effect]:
        """Process an acknowledgement; return its message and the effect."""
        flight = self.flights.get(packet_id)
        if flight is not None and reason < 0x80:
            # Fast path for nearly all acknowledgements, with the table's effect.
            stage = flight.stage
            if packet_type is _PUBREC and stage is AWAITS_PUBREC:
                flight.stage = AWAITS_PUBCOMP
                return flight, RELEASE
            if (packet_type is _PUBACK and stage is AWAITS_PUBACK) or (
                packet_type is _PUBCOMP and stage is AWAITS_PUBCOMP
            ):
                del self.flights[packet_id]
                self.ended(flight)
                return flight, COMPLETE
        effect = OUTGOING[None if flight is None else flight.stage, packet_type]
        if reason >= 0x80 and effect in REFUSABLE:
            effect = REFUSED
        if flight is not None:
            if effect is COMPLETE or effect is REFUSED:
                del self.flights[packet_id]
                self.ended(flight)
            elif effect is RELEASE:
                flight.stage = AWAITS_PUBCOMP
        return flight, effect

    def forget(self, packet_id: int) -> None:
        """Free the identifier of a message that was not sent after all."""
        flight = self.flights.pop(packet_id, None)
        if flight is not None:
            self.ended(flight)

    def began(self, flight: F) -> None:
        """Called when a message is in flight; overridden to count."""

    def ended(self, flight: F) -> None:
        """Called when a message is no longer in flight."""

    def __iter__(self) -> Iterator[tuple[int, F]]:
        """Iterate in the order of sending, which is the order of resending (MQTT-4.6.0-1)."""
        return iter(list(self.flights.items()))

    def __len__(self) -> int:
        return len(self.flights)


_NONE: Final[frozenset[int]] = frozenset()


class Incoming:
    """The packet identifiers of QoS 2 messages received and not yet released (MQTT-4.3.3-10)."""

    __slots__ = ("packet_ids", "pending")

    def __init__(self) -> None:
        self.packet_ids: frozenset[int] | set[int] = _NONE
        """A mutable set only if it is not empty: most sessions never need one."""
        self.pending: dict[int, MessageId] | None = None
        """Those whose messages other nodes have not committed, with the ids of the messages: PUBREC was not sent."""

    def restore(self, packet_ids: Iterable[int], pending: Mapping[int, MessageId] = MappingProxyType({})) -> None:
        """Replace the identifiers; ``pending`` are those whose messages other nodes may not have committed."""
        self.packet_ids = {*packet_ids, *pending} or _NONE
        self.pending = dict(pending) or None

    def hold(self, packet_id: int, message: MessageId) -> None:
        """Mark an identifier as pending."""
        if self.pending is None:
            self.pending = {}
        self.pending[packet_id] = message

    def confirm(self, packet_id: int) -> None:
        """Mark an identifier as not pending any more."""
        pending = self.pending
        if pending is not None:
            pending.pop(packet_id, None)
            if not pending:
                self.pending = None

    def forget(self, packet_id: int) -> None:
        """Remove the identifier of a message that was not accepted after all."""
        self.confirm(packet_id)
        if isinstance(self.packet_ids, set):
            self.packet_ids.discard(packet_id)

    def open(self, packet_id: int) -> bool:
        """Process a QoS 2 PUBLISH; return ``False`` for a repeated one, which must not be delivered again."""
        packet_ids = self.packet_ids
        if packet_id in packet_ids:
            return False
        if isinstance(packet_ids, set):
            packet_ids.add(packet_id)
        else:
            self.packet_ids = {packet_id}
        return True

    def close(self, packet_id: int) -> ReasonCode:
        """Process a PUBREL; return the reason code of the PUBCOMP (MQTT-4.3.3-11)."""
        if packet_id in self.packet_ids:
            self.forget(packet_id)
            return ReasonCode.SUCCESS
        return ReasonCode.PACKET_IDENTIFIER_NOT_FOUND


def check_quota(unacknowledged: int, receive_maximum: int) -> None:
    """Check that a peer has no more unacknowledged QoS 1 and 2 messages than allowed (section 3.3.4).

    Raises :class:`ProtocolError` with reason 0x93.
    """
    if unacknowledged > receive_maximum:
        error = ProtocolError(f"more than {receive_maximum} messages unacknowledged", "MQTT-3.3.4-9")
        error.reason = ReasonCode.RECEIVE_MAXIMUM_EXCEEDED
        raise error
