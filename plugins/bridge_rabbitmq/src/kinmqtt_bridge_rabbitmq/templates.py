"""Templates of routing keys, and of the topics that deliveries are published to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kinmqtt_spi.templates import MESSAGE_NAMES, Part, Template, TopicTemplate, part_of_message
from kinmqtt_spi.values import Message

MAX_SHORT_BYTES: Final = 255
"""The longest name, routing key or short property of AMQP, in bytes of UTF-8."""


def is_short(text: str) -> bool:
    """Tell whether a text fits where AMQP allows 255 bytes."""
    return len(text) <= MAX_SHORT_BYTES and len(text.encode("utf-8", "surrogatepass")) <= MAX_SHORT_BYTES


_SWAPPED: Final = str.maketrans("/.", "./")


def swapped(text: str) -> str:
    """Return a topic as a routing key, or a routing key as a topic: slashes and dots change places.

    Topic exchanges divide keys at dots, as MQTT divides topics at slashes. A dot within a level must not become a
    division: two topics would have one key, and a publisher could choose other bindings than its topics allow.
    """
    return text.translate(_SWAPPED) if "." in text else text.replace("/", ".")


def _as_word(text: str | None) -> str | None:
    """Return a level or a name as one word of a routing key; ``None`` for a name with a slash."""
    return None if text is None or "/" in text else text.replace(".", "/")


def routing_key(text: str) -> Template[Message]:
    """Return the template of a routing key, where ``${topic}`` has a dot for each slash; raises ``ValueError``.

    A level or a name is one word there.
    """

    def find(name: str) -> Part[Message] | None:
        if name == "topic":
            return lambda message: swapped(message.topic)
        part = part_of_message(name)
        return None if part is None else lambda message: _as_word(part(message))

    template = Template(text, find, MESSAGE_NAMES)
    if template.is_constant and not is_short(text):
        raise ValueError(f"a routing key has at most {MAX_SHORT_BYTES} bytes")
    return template


DELIVERY_NAMES: Final = "${routing_key}, ${topic}, ${queue}, ${exchange} or ${header.NAME}"


class Incoming:
    """What a template of a source may use of a delivery."""

    __slots__ = ("exchange", "headers", "queue", "routing_key")

    def __init__(self, queue: str, exchange: str, routing_key: str, headers: Mapping[str, Any]) -> None:
        self.queue = queue
        self.exchange = exchange
        self.routing_key = routing_key
        self.headers = headers


def text_of(value: Any) -> str | None:
    """Return the text of a header's value; ``None`` for one that is no text, number or boolean."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, bytes | bytearray):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return None
    return None


_OF_A_DELIVERY: Final[Mapping[str, Part[Incoming]]] = {
    "routing_key": lambda delivery: delivery.routing_key or None,
    "topic": lambda delivery: swapped(delivery.routing_key) or None,
    "queue": lambda delivery: delivery.queue,
    "exchange": lambda delivery: delivery.exchange or None,
}


def _find_in_delivery(name: str) -> Part[Incoming] | None:
    kind, dot, header = name.partition(".")
    if kind == "header" and dot and header:
        return lambda delivery: text_of(delivery.headers.get(header)) or None
    return _OF_A_DELIVERY.get(name)


def mqtt_topic(text: str) -> TopicTemplate[Incoming]:
    """Return the template of the MQTT topics of deliveries; raises ``ValueError``."""
    return TopicTemplate(text, _find_in_delivery, DELIVERY_NAMES)
