"""Handlers of PUBACK, PUBREC, PUBREL and PUBCOMP (section 4.3)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kinmqtt.broker.handlers.common import session_of
from kinmqtt.mqtt.acknowledgements import pubrel as pubrel_packet
from kinmqtt.mqtt.acknowledgements import success, with_reason
from kinmqtt.mqtt.codec import decode
from kinmqtt.mqtt.errors import ProtocolError
from kinmqtt.mqtt.packets import V5, PacketType
from kinmqtt.mqtt.qos_state import COMPLETE, REFUSED, RELEASE, RELEASE_AGAIN, UNKNOWN, VIOLATION
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services import queue

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection

_SUCCESS: Final = ReasonCode.SUCCESS
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_PUBCOMP: Final = PacketType.PUBCOMP


def puback(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a PUBACK."""
    return _acknowledged(connection, frame, body, _PUBACK, 0x40)


def pubrec(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a PUBREC."""
    return _acknowledged(connection, frame, body, _PUBREC, 0x50)


def pubcomp(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a PUBCOMP."""
    return _acknowledged(connection, frame, body, _PUBCOMP, 0x70)


def _acknowledged(
    connection: Connection, frame: bytes, body: int, packet_type: PacketType, first_byte: int
) -> bool | None:
    session = session_of(connection)
    packet_id, reason = _read_acknowledgement(connection, frame, body, first_byte)
    delivery, effect = session.outgoing.acknowledge(packet_id, packet_type, reason)
    if effect is VIOLATION:
        raise ProtocolError(f"{packet_type.name} for a message of another QoS", "MQTT-4.3.2-3")
    if effect is UNKNOWN:
        if packet_type is _PUBREC and reason < 0x80:
            connection.send(pubrel_packet(connection.version, packet_id, ReasonCode.PACKET_IDENTIFIER_NOT_FOUND))
        return None
    if delivery is None:
        return None
    if packet_type is not _PUBCOMP and effect is not RELEASE_AGAIN:
        runtime = connection.runtime
        if runtime.notifies_acknowledged:
            message = delivery.publication.message
            runtime.hooks.acknowledged.about(message.topic, session.client, message, ReasonCode(reason))
    if effect is COMPLETE or effect is REFUSED:
        session.finished(delivery)
        return None
    turn = connection.runtime.turn
    if effect is RELEASE:
        session.released(delivery)
        if session.persistent:
            turn.batch.queue.append(queue.Release(session.client_id, session.epoch, delivery.sequence))
    turn.acknowledge(connection, pubrel_packet(connection.version, packet_id, _SUCCESS), completes=False)
    return None


def _read_acknowledgement(connection: Connection, frame: bytes, body: int, first_byte: int) -> tuple[int, int]:
    """Returns packet identifier and reason; nearly every acknowledgement has four bytes and succeeds."""
    if len(frame) == 4 and frame[0] == first_byte:
        packet_id = frame[2] << 8 | frame[3]
        if packet_id:
            return packet_id, 0
    packet: Any = decode(frame, body, connection.version, connection.limits)
    return packet.packet_id, packet.reason


def pubrel(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle a PUBREL: release the packet identifier of a QoS 2 message."""
    session = session_of(connection)
    packet_id, _ = _read_acknowledgement(connection, frame, body, 0x62)
    reason = session.incoming.close(packet_id)
    turn = connection.runtime.turn
    if session.persistent and reason is _SUCCESS:
        turn.batch.queue.append(queue.InboundClose(session.client_id, session.epoch, packet_id))
    if reason is _SUCCESS or connection.version != V5:
        answer = success(PacketType.PUBCOMP, packet_id)
    else:
        answer = with_reason(PacketType.PUBCOMP, packet_id, reason)
    turn.acknowledge(connection, answer, completes=reason is _SUCCESS)
    return None
