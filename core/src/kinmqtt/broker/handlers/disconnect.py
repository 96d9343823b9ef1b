"""Handlers of PINGREQ and DISCONNECT (sections 3.12 and 3.14)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.mqtt.codec import decode
from kinmqtt.mqtt.errors import ProtocolError
from kinmqtt.mqtt.packets import DisconnectPacket

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection

PINGRESP: Final = b"\xd0\x00"


def ping(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Answer a PINGREQ with PINGRESP (MQTT-3.12.4-1)."""
    decode(frame, body, connection.version, connection.limits)
    connection.send(PINGRESP)
    return None


def disconnect(connection: Connection, frame: bytes, body: int) -> bool | None:
    """Handle DISCONNECT: set a new session expiry interval (section 3.14.2.2.2) and close."""
    packet = decode(frame, body, connection.version, connection.limits)
    session = connection.session
    if not isinstance(packet, DisconnectPacket):
        raise ProtocolError("not a DISCONNECT")
    expiry_s = packet.properties.session_expiry_interval
    if session is not None and expiry_s is not None:
        if expiry_s and not connection.expiry_asked_s:
            raise ProtocolError("DISCONNECT has a session expiry interval, but CONNECT had none", "MQTT-3.14.2-2")
        session.expiry_s = min(expiry_s, connection.runtime.limits.max_session_expiry_s)
    connection.start_disconnect(packet.reason)
    return True
