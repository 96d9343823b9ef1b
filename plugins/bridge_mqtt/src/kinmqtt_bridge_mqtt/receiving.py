"""Reads PUBLISH packets of the far broker.

paho's time for the properties grows with the square of their number, and it refuses U+FEFF in them, which MQTT
allows: one message of a client over there would hold this broker, or end the connection each time it comes.
"""

from __future__ import annotations

from typing import Any, Final

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

PAIR_BYTES: Final = 200
"""About what a user property takes in memory besides its bytes."""

_INTEGERS: Final = {0x01: ("PayloadFormatIndicator", 1), 0x02: ("MessageExpiryInterval", 4), 0x23: ("TopicAlias", 2)}
_TEXTS: Final = {0x03: "ContentType", 0x08: "ResponseTopic"}
_CORRELATION_DATA: Final = 0x09
_SUBSCRIPTION_IDENTIFIER: Final = 0x0B
_USER_PROPERTY: Final = 0x26


class Received(Properties):
    """The properties of a message, with the names that paho gives them."""

    size: int

    def __init__(self, values: dict[str, Any], size: int) -> None:
        vars(self).update(values)
        object.__setattr__(self, "packetType", PacketTypes.PUBLISH)
        object.__setattr__(self, "size", size)


def size_of(message: MQTTMessage) -> int:
    """Return about how many bytes a message takes in memory, besides a fixed part and its topic."""
    properties = message.properties
    return len(message.payload) + (properties.size if isinstance(properties, Received) else 0)


def read_publish(command: int, packet: bytes | bytearray, is_v5: bool) -> MQTTMessage:
    """Return the message of a packet: ``command`` is its first byte, ``packet`` what is behind its length.

    Raises ``ValueError`` for one that is malformed.
    """
    data = bytes(packet)
    topic, place = _binary(data, 0, len(data))
    qos = command >> 1 & 3
    if qos == 3 or (not topic and not is_v5):
        raise ValueError("malformed PUBLISH")
    mid = 0
    if qos:
        mid, place = _integer(data, place, 2, len(data))
    message = MQTTMessage(mid, topic)
    message.qos = qos
    message.dup = bool(command & 8)
    message.retain = bool(command & 1)
    if is_v5:
        length, place = _varying(data, place)
        message.properties = _properties(data, place, place + length)
        place += length
    message.payload = data[place:]
    return message


def _properties(data: bytes, place: int, end: int) -> Received | None:
    if place == end:
        return None
    if end > len(data):
        raise ValueError("the properties are longer than the packet")
    size = end - place
    values: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []
    while place < end:
        kind = data[place]
        place += 1
        if kind == _USER_PROPERTY:
            key, place = _text(data, place, end)
            value, place = _text(data, place, end)
            pairs.append((key, value))
            continue
        if kind == _SUBSCRIPTION_IDENTIFIER:
            _, place = _varying(data, place)
            continue
        found: Any
        if kind in _INTEGERS:
            name, length = _INTEGERS[kind]
            found, place = _integer(data, place, length, end)
        elif kind in _TEXTS:
            name = _TEXTS[kind]
            found, place = _text(data, place, end)
        elif kind == _CORRELATION_DATA:
            name = "CorrelationData"
            found, place = _binary(data, place, end)
        else:
            raise ValueError(f"PUBLISH has no property 0x{kind:02X}")
        if name in values:
            raise ValueError(f"{name} is there twice")
        values[name] = found
    if place > end:
        raise ValueError("a property is longer than all of them")
    if pairs:
        values["UserProperty"] = pairs
    return Received(values, size + PAIR_BYTES * len(pairs))


def _integer(data: bytes, place: int, length: int, end: int) -> tuple[int, int]:
    stop = place + length
    if stop > end:
        raise ValueError("a number has no end")
    return int.from_bytes(data[place:stop], "big"), stop


def _binary(data: bytes, place: int, end: int) -> tuple[bytes, int]:
    length, start = _integer(data, place, 2, end)
    stop = start + length
    if stop > end:
        raise ValueError("a text has no end")
    return data[start:stop], stop


def _text(data: bytes, place: int, end: int) -> tuple[str, int]:
    found, place = _binary(data, place, end)
    if 0 in found:
        raise ValueError("a text has U+0000")
    return found.decode(), place


def _varying(data: bytes, place: int) -> tuple[int, int]:
    """Return a variable byte integer, and the place behind it."""
    number = 0
    for shift in (0, 7, 14, 21):
        if place >= len(data):
            break
        byte = data[place]
        place += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, place
    raise ValueError("a length has no end")
