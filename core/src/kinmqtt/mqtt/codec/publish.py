"""PUBLISH (MQTT 5.0 section 3.3), the packet that determines a broker's speed.

Decoding does not copy the payload, and caches topics by their bytes. Encoding is split at the Packet Identifier,
which alone differs between the subscribers of a message.

The codec does not know the sender: a Subscription Identifier from a client, and a Topic Alias that is too large or
unknown, are checked by the connection.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.codec.primitives import Cursor, text_of, write_packet_id, write_utf8, write_varint
from kinmqtt.mqtt.codec.properties import UNLIMITED, PropertyLimits, read_properties, write_properties
from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError, RemoteError
from kinmqtt.mqtt.packets import V5, PacketType, Publish
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode

_OWNER: Final = PacketType.PUBLISH
_DUP: Final = 0x08
_RETAIN: Final = 0x01

# Valid topics by their bytes. Both bounds hold whatever peers send. A full cache is cleared, which costs one decoding
# for each topic still in use and needs no bookkeeping on a hit.
_CACHED_TOPICS: Final = 8192
_CACHED_TOPIC_BYTES: Final = 256
_topics: Final[dict[bytes, str]] = {}


def decode_publish(frame: bytes, body: int, version: int, limits: PropertyLimits = UNLIMITED) -> Publish:
    """Decode a PUBLISH; ``topic`` may be empty only with a Topic Alias, which is not resolved here."""
    flags = frame[0] & 0x0F
    size = len(frame)
    topic_start = body + 2
    if topic_start > size:
        raise MalformedPacket("a PUBLISH without a Topic Name", "MQTT-3.3.2-1")
    position = topic_end = topic_start + (frame[body] << 8 | frame[body + 1])
    if topic_end > size:
        raise MalformedPacket("the Topic Name runs past the end of the packet", "MQTT-3.3.2-1")
    raw = frame[topic_start:topic_end]
    topic = _topics.get(raw)
    if topic is None:
        topic = _new_topic(raw)
    qos = packet_id = 0
    if flags > _RETAIN:
        qos = checked_qos(flags)
        position += 2
        if position > size:
            raise MalformedPacket("a PUBLISH without its Packet Identifier", "section 3.3.2.2")
        packet_id = frame[topic_end] << 8 | frame[topic_end + 1]
        if not packet_id:
            raise ProtocolError("the Packet Identifier is 0", "MQTT-2.2.1-3")
    properties = NO_PROPERTIES
    if version == V5:
        if position < size and not frame[position]:
            position += 1
        else:
            reader = Cursor(frame, position)
            properties = read_properties(reader, _OWNER, limits)
            position = reader.pos
    if not topic and properties.topic_alias is None:
        raise ProtocolError("an empty Topic Name without a Topic Alias", "MQTT-4.7.3-1")
    return Publish(
        frame,
        topic,
        qos,
        flags & _RETAIN == _RETAIN,
        flags >= _DUP,
        packet_id,
        properties,
        topic_end,
        position,
    )


def encode_publish(publish: Publish, version: int) -> bytes:
    """The whole packet; before 5.0 properties have no place and are left out.

    Raises :class:`LocalError` for a topic, QoS, DUP flag or Packet Identifier that cannot be sent.
    """
    head, tail = publish_parts(publish, version, publish.qos, publish.retain, publish.properties, dup=publish.dup)
    if publish.qos:
        return head + write_packet_id(publish.packet_id) + tail
    if publish.packet_id:
        raise LocalError("a PUBLISH of QoS 0 has no Packet Identifier")
    return head + tail


def publish_parts(
    publish: Publish,
    version: int,
    qos: int,
    retain: bool,
    properties: Properties,
    *,
    topic: str | None = None,
    dup: bool = False,
) -> tuple[bytes, bytes]:
    """What stands before and after the Packet Identifier, so that one encoding serves many subscribers.

    ``head + packet_id.to_bytes(2) + tail`` is the packet, ``head + tail`` that of QoS 0. ``topic`` replaces
    the message's own, with ``""`` where ``properties`` carry a Topic Alias. Raises
    :class:`LocalError` like :func:`encode_publish`.
    """
    head, tail = publish_without_payload(publish, version, qos, retain, properties, topic=topic, dup=dup)
    return head, tail + publish.payload


def publish_without_payload(
    publish: Publish,
    version: int,
    qos: int,
    retain: bool,
    properties: Properties,
    *,
    topic: str | None = None,
    dup: bool = False,
    written: bytes = b"",
) -> tuple[bytes, bytes]:
    """The same, but for the payload, which ends the packet: a large one need not be copied for each subscriber.

    ``written`` are further properties, as bytes.
    """
    if not 0 <= qos <= 2 or (dup and not qos):
        raise LocalError(f"a PUBLISH of QoS {qos} with DUP {int(dup)}")
    topic = publish.topic if topic is None else topic
    if "+" in topic or "#" in topic:
        raise LocalError("a Topic Name must not contain wildcard characters")
    if not topic and (version != V5 or properties.topic_alias is None):
        raise LocalError("an empty Topic Name needs a Topic Alias")
    name = write_utf8(topic)
    tail = write_properties(properties, _OWNER, written) if version == V5 else b""
    length = len(name) + len(tail) + publish.payload_size + (2 if qos else 0)
    first_byte = 0x30 | dup << 3 | qos << 1 | retain
    return bytes((first_byte,)) + write_varint(length) + name, tail


def _new_topic(raw: bytes) -> str:
    """Validate and cache a new topic; an empty one is checked by the caller."""
    topic = text_of(raw)
    if "+" in topic or "#" in topic:
        raise RemoteError(ReasonCode.TOPIC_NAME_INVALID, "a Topic Name with wildcard characters", "MQTT-3.3.2-2")
    if raw and len(raw) <= _CACHED_TOPIC_BYTES:
        if len(_topics) >= _CACHED_TOPICS:
            _topics.clear()
        _topics[raw] = topic
    return topic


def checked_qos(flags: int) -> int:
    """Return the QoS of a PUBLISH with these flags; raise an error for QoS 3, and for DUP in QoS 0."""
    qos = flags >> 1 & 0x03
    if qos == 3:
        raise MalformedPacket("a PUBLISH of QoS 3", "MQTT-3.3.1-4")
    if not qos:
        raise MalformedPacket("DUP is set in a PUBLISH of QoS 0", "MQTT-3.3.1-2")
    return qos
