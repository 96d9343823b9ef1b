"""The server's state machine of one network connection, as a table (sections 3.1, 3.14, 3.15 and 4.12).

The table gives the broker's action for each state and packet type; any other packet is the peer's error. The broker
runs the table and the tests enumerate it; no other code decides the order of packets.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType
from typing import Final

from kinmqtt.mqtt.codec.flags import check_flags
from kinmqtt.mqtt.errors import MalformedPacket, ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt_spi.reasons import ReasonCode


class State(Enum):
    """The state of a connection."""

    AWAITING_CONNECT = "awaiting CONNECT"
    CONNECTING = "connecting"
    """CONNECT is being processed. Packets that the client sends before its CONNACK wait (section 3.1.4)."""
    AUTHENTICATING = "authenticating"
    """The broker waits for the next step of an enhanced authentication."""
    CONNECTED = "connected"
    REAUTHENTICATING = "re-authenticating"
    """Like CONNECTED, during an AUTH exchange (section 4.12.1)."""
    CLOSED = "closed"


class PacketAction(Enum):
    """The broker's action for a packet."""

    CONNECT = "connect"
    PUBLISH = "publish"
    PUBACK = "puback"
    PUBREC = "pubrec"
    PUBREL = "pubrel"
    PUBCOMP = "pubcomp"
    SUBSCRIBE = "subscribe"
    UNSUBSCRIBE = "unsubscribe"
    PING = "ping"
    DISCONNECT = "disconnect"
    AUTHENTICATE = "authenticate"
    """The next step of the exchange that CONNECT began."""
    REAUTHENTICATE = "reauthenticate"
    """A step of a re-authentication."""


_WHILE_CONNECTED: Final = {
    PacketType.PUBLISH: PacketAction.PUBLISH,
    PacketType.PUBACK: PacketAction.PUBACK,
    PacketType.PUBREC: PacketAction.PUBREC,
    PacketType.PUBREL: PacketAction.PUBREL,
    PacketType.PUBCOMP: PacketAction.PUBCOMP,
    PacketType.SUBSCRIBE: PacketAction.SUBSCRIBE,
    PacketType.UNSUBSCRIBE: PacketAction.UNSUBSCRIBE,
    PacketType.PINGREQ: PacketAction.PING,
    PacketType.DISCONNECT: PacketAction.DISCONNECT,
    PacketType.AUTH: PacketAction.REAUTHENTICATE,
}

TABLE: Final[Mapping[State, Mapping[PacketType, PacketAction]]] = MappingProxyType(
    {
        State.AWAITING_CONNECT: {PacketType.CONNECT: PacketAction.CONNECT},
        State.CONNECTING: {},
        State.AUTHENTICATING: {
            PacketType.AUTH: PacketAction.AUTHENTICATE,
            PacketType.DISCONNECT: PacketAction.DISCONNECT,
        },
        State.CONNECTED: _WHILE_CONNECTED,
        State.REAUTHENTICATING: _WHILE_CONNECTED,
        State.CLOSED: {},
    }
)

TRANSITIONS: Final[Mapping[State, frozenset[State]]] = MappingProxyType(
    {
        State.AWAITING_CONNECT: frozenset({State.CONNECTING, State.CLOSED}),
        State.CONNECTING: frozenset({State.AUTHENTICATING, State.CONNECTED, State.CLOSED}),
        State.AUTHENTICATING: frozenset({State.CONNECTING, State.CLOSED}),
        State.CONNECTED: frozenset({State.REAUTHENTICATING, State.CLOSED}),
        State.REAUTHENTICATING: frozenset({State.CONNECTED, State.CLOSED}),
        State.CLOSED: frozenset(),
    }
)
"""The possible next states of each state. The broker decides which, so no packets are listed."""


def violation(state: State, packet_type: int, version: int) -> RemoteError:
    """Return the error for a packet that the state does not allow."""
    if packet_type == 0:
        return MalformedPacket("packet type 0 is reserved", "section 2.1.2")
    name = PacketType(packet_type).name
    # Before CONNECT the version is unknown, and 0.
    if packet_type == PacketType.AUTH and 0 < version < V5:
        return MalformedPacket("packet type 15 is reserved before MQTT 5.0", "section 2.2.1 (3.1.1)")
    if state is State.AWAITING_CONNECT:
        return ProtocolError(f"the first packet was {name}, not CONNECT", "MQTT-3.1.0-1")
    if packet_type == PacketType.CONNECT:
        return ProtocolError("a second CONNECT", "MQTT-3.1.0-2")
    if state is State.AUTHENTICATING:
        return ProtocolError(f"{name} during authentication", "MQTT-3.1.2-30")
    return ProtocolError(f"{name} must not be sent to a server", "section 2.1.2")


def check_first_byte(first_byte: int, state: State, version: int) -> None:
    """Check a packet by its first byte, so that the rest of an invalid packet is not waited for.

    Raises the error of the state table, or of the flags, that the whole packet would get. While a CONNECT is being
    processed nothing is raised, because the state in which the next packet is handled is unknown.
    """
    if state is State.CONNECTING:
        return
    packet_type = first_byte >> 4
    if packet_type not in TABLE[state] or (packet_type == PacketType.AUTH and version < V5):
        raise violation(state, packet_type, version)
    check_flags(first_byte, version)


def check_authentication_step(method: str | None, offered: str | None, reason: ReasonCode, state: State) -> None:
    """Check an AUTH packet against CONNECT's method and the state of the exchange.

    Raises :class:`ProtocolError` for a method that differs from CONNECT's (MQTT-4.12.0-5, MQTT-4.12.0-7), and for
    a reason code that is wrong for the step (MQTT-4.12.0-3, MQTT-4.12.1-1).
    """
    if method is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
    if offered != method:
        raise ProtocolError("the authentication method changed", "MQTT-4.12.0-5")
    begins = state is State.CONNECTED
    wanted = ReasonCode.REAUTHENTICATE if begins else ReasonCode.CONTINUE_AUTHENTICATION
    if reason is not wanted:
        clause = "MQTT-4.12.1-1" if begins else "MQTT-4.12.0-3"
        raise ProtocolError(f"AUTH with reason 0x{reason:02X} instead of 0x{wanted:02X}", clause)
