"""Encodes and decodes packets of MQTT 3.1, 3.1.1 and 5.0.

:func:`decode` takes a complete packet from :class:`kinmqtt.mqtt.framing.Framer` and raises nothing but
:class:`~kinmqtt.mqtt.errors.RemoteError`; :func:`encode` raises nothing but :class:`~kinmqtt.mqtt.errors.LocalError`.
Both support both directions, so that two ends can be connected in memory. Rules that depend on the sender of a
packet, or on earlier packets, are not checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from kinmqtt.mqtt import packets
from kinmqtt.mqtt.codec import acks, connect, plain, publish, subscribe
from kinmqtt.mqtt.codec.connect import peek_version
from kinmqtt.mqtt.codec.properties import UNLIMITED, PropertyLimits
from kinmqtt.mqtt.codec.publish import decode_publish, encode_publish, publish_parts
from kinmqtt.mqtt.errors import LocalError, MalformedPacket
from kinmqtt.mqtt.packets import Packet

__all__ = ["decode", "decode_publish", "encode", "encode_publish", "peek_version", "publish_parts"]


def decode(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Packet:
    """Decode the packet in ``frame``, whose body begins at offset ``body``.

    ``version`` is the level in the CONNECT of this stream (3, 4 or 5); a CONNECT itself does not need it.
    ``limits`` bound each property list of the packet. Raises :class:`RemoteError` with the reason code of the
    answer.
    """
    return _DECODERS[frame[0] >> 4](frame, body, version, limits)


def encode(packet: Packet, version: int) -> bytes:
    """Encode ``packet`` in ``version``; raise :class:`LocalError` if that is impossible.

    Fields that an older version lacks and that do not change the packet's effect (properties, the reason of an
    acknowledgement) are omitted, so that the callers need not know the version.
    """
    encoder = _ENCODERS.get(type(packet))
    if encoder is None:
        raise LocalError(f"{type(packet).__name__} is not a packet")
    return encoder(packet, version)


def _decode_reserved(frame: bytes, body: int, version: int, limits: PropertyLimits) -> NoReturn:
    raise MalformedPacket("packet type 0 is reserved", "section 2.1.2")


_DECODERS: Final[tuple[Callable[[bytes, int, int, PropertyLimits], Packet], ...]] = (
    _decode_reserved,
    connect.decode_connect,
    connect.decode_connack,
    publish.decode_publish,
    acks.decode_puback,
    acks.decode_pubrec,
    acks.decode_pubrel,
    acks.decode_pubcomp,
    subscribe.decode_subscribe,
    subscribe.decode_suback,
    subscribe.decode_unsubscribe,
    subscribe.decode_unsuback,
    plain.decode_pingreq,
    plain.decode_pingresp,
    plain.decode_disconnect,
    plain.decode_auth,
)

_ENCODERS: Final[Mapping[type[Packet], Callable[[Any, int], bytes]]] = {
    packets.Connect: connect.encode_connect,
    packets.Connack: connect.encode_connack,
    packets.Publish: publish.encode_publish,
    packets.Puback: acks.encode_acknowledgement,
    packets.Pubrec: acks.encode_acknowledgement,
    packets.Pubrel: acks.encode_acknowledgement,
    packets.Pubcomp: acks.encode_acknowledgement,
    packets.Subscribe: subscribe.encode_subscribe,
    packets.Suback: subscribe.encode_suback,
    packets.Unsubscribe: subscribe.encode_unsubscribe,
    packets.Unsuback: subscribe.encode_unsuback,
    packets.Pingreq: plain.encode_pingreq,
    packets.Pingresp: plain.encode_pingresp,
    packets.DisconnectPacket: plain.encode_disconnect,
    packets.Auth: plain.encode_auth,
}
