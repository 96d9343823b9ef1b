"""The state machine of one network connection, server side, as a table (sections 3.1, 3.14, 3.15 and 4.12).

The table says for each state and packet type what the broker does; what is not in it is the peer's error. The
broker runs it, the tests enumerate it, and nothing about the order of packets is decided elsewhere.
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
    """Where a connection stands."""

    AWAITING_CONNECT = "awaiting CONNECT"
    CONNECTING = "connecting"
    """CONNECT is being judged. What the client sends ahead of its CONNACK waits (section 3.1.4)."""
    AUTHENTICATING = "authenticating"
    """The broker has asked for the next step of an enhanced authentication."""
    CONNECTED = "connected"
    REAUTHENTICATING = "re-authenticating"
    """As CONNECTED, while an AUTH exchange runs beside the other packets (section 4.12.1)."""
    CLOSED = "closed"


class PacketAction(Enum):
    """What the broker does with a packet."""

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
    """A first or later step of an exchange within the connection."""


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
"""The states that may follow each state. What leads there is the broker's judgement, so no packet is named."""


def violation(state: State, packet_type: int, version: int) -> RemoteError:
    """The error of a peer that sends a packet its state does not allow."""
    if packet_type == 0:
        return MalformedPacket("packet type 0 is reserved", "section 2.1.2")
    name = PacketType(packet_type).name
    # Before CONNECT, where the version is 0, nobody knows which it is.
    if packet_type == PacketType.AUTH and 0 < version < V5:
        return MalformedPacket("packet type 15 is reserved before MQTT 5.0", "section 2.2.1 (3.1.1)")
    if state is State.AWAITING_CONNECT:
        return ProtocolError(f"the first packet was {name}, not CONNECT", "MQTT-3.1.0-1")
    if packet_type == PacketType.CONNECT:
        return ProtocolError("a second CONNECT", "MQTT-3.1.0-2")
    if state is State.AUTHENTICATING:
        return ProtocolError(f"{name} during authentication", "MQTT-3.1.2-30")
    return ProtocolError(f"{name} is not for a server to receive", "section 2.1.2")


def check_first_byte(first_byte: int, state: State, version: int) -> None:
    """Judge a packet by its first byte: nothing of the rest is waited for where no packet may begin so.

    Raises the error of the state table, or of the flags, that the whole packet would be answered with. While a
    CONNECT is being judged nothing is raised: in which state the next packet will be met is not known.
    """
    if state is State.CONNECTING:
        return
    packet_type = first_byte >> 4
    if packet_type not in TABLE[state] or (packet_type == PacketType.AUTH and version < V5):
        raise violation(state, packet_type, version)
    check_flags(first_byte, version)


def check_authentication_step(method: str | None, offered: str | None, reason: ReasonCode, state: State) -> None:
    """Judge an AUTH packet by the method that CONNECT named and by where the exchange stands.

    Raises :class:`ProtocolError` for a method that CONNECT did not name (MQTT-4.12.0-5, MQTT-4.12.0-7), and for
    a reason code that does not fit the step (MQTT-4.12.0-3, MQTT-4.12.1-1).
    """
    if method is None:
        raise ProtocolError("AUTH without an authentication method in CONNECT", "MQTT-4.12.0-7")
    if offered != method:
        raise ProtocolError("the authentication method changed", "MQTT-4.12.0-5")
    begins = state is State.CONNECTED
    wanted = ReasonCode.REAUTHENTICATE if begins else ReasonCode.CONTINUE_AUTHENTICATION
    if reason is not wanted:
        clause = "MQTT-4.12.1-1" if begins else "MQTT-4.12.0-3"
        raise ProtocolError(f"AUTH with reason 0x{reason:02X} where 0x{wanted:02X} is due", clause)
