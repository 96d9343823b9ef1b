"""What a message becomes in Kafka, and a record in MQTT."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple

from kinmqtt_bridge_kafka.settings import OURS, PublishSettings
from kinmqtt_bridge_kafka.templates import Incoming, MqttTopic, of_message
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import Message

TOPIC: Final = "mqtt-topic"
QOS: Final = "mqtt-qos"
RETAIN: Final = "mqtt-retain"
ID: Final = "mqtt-id"
CONTENT_TYPE: Final = "mqtt-content-type"
RESPONSE_TOPIC: Final = "mqtt-response-topic"
CORRELATION_DATA: Final = "mqtt-correlation-data"

_DIGITS: Final = tuple((QOS, str(qos).encode()) for qos in range(3))
_FLAGS: Final = ((RETAIN, b"0"), (RETAIN, b"1"))

RECORD_OVERHEAD: Final = 40
"""More bytes than a record takes besides its key, value and headers."""

HEADER_OVERHEAD: Final = 10
"""More bytes than a header takes besides its name and value."""

Headers = list[tuple[str, bytes]]


class Record(NamedTuple):
    """A record on its way to Kafka."""

    number: int
    """The place of its message in the batch."""
    key: bytes
    value: bytes
    headers: Headers
    at_ms: int
    """When the message was received, in milliseconds since the epoch."""


def headers_maker(more: Mapping[str, str]) -> Callable[[Message], Headers]:
    """Return what makes a message's headers; ``more`` are the settings' own, whose templates are valid."""
    templates = [(name, of_message(text).fill_in_present) for name, text in more.items()]

    def headers(message: Message) -> Headers:
        id = message.id
        found: Headers = [
            (TOPIC, message.topic.encode("utf-8", "surrogatepass")),
            _DIGITS[message.qos],
            _FLAGS[message.retain],
            (ID, b"%016x-%d" % (id.node, id.counter)),
        ]
        if message.properties:
            found += _of_properties(message.properties)
        for name, fill_in in templates:
            found.append((name, fill_in(message).encode("utf-8", "surrogatepass")))
        return found

    return headers


def _of_properties(properties: Properties) -> Headers:
    found: Headers = []
    if properties.content_type is not None:
        found.append((CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        found.append((RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        found.append((CORRELATION_DATA, properties.correlation_data))
    # A client must not claim another id or topic: some consumers read the last header of a name, others the first.
    found += [(name, text.encode()) for name, text in properties.user_property if not name.startswith(OURS)]
    return found


def size_of(key: bytes, value: bytes, headers: Headers) -> int:
    """Return an upper bound of a record's size in bytes; header names are ASCII, or count four times."""
    size = RECORD_OVERHEAD + len(key) + len(value)
    for name, data in headers:
        size += HEADER_OVERHEAD + (len(name) if name.isascii() else 4 * len(name)) + len(data)
    return size


class Incomer:
    """Makes messages of records."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._topic = MqttTopic(settings.topic)

    def message(
        self, topic: str, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]
    ) -> Message | None:
        """Return a record's message; ``None`` if the template makes no topic of it.

        A record without a value becomes an empty message, which deletes a retained one.
        """
        named = {name: data or b"" for name, data in headers}
        found = self._topic.fill_in(Incoming(topic, key, named))
        if found is None:
            return None
        settings = self._settings
        properties = _to_properties(headers) if settings.user_properties and headers else Properties()
        return Message(found, value or b"", settings.qos, settings.retain, properties)


def _to_properties(headers: Sequence[tuple[str, bytes | None]]) -> Properties:
    """Return headers as user properties: those of the bridge, and those that aren't texts of MQTT, are left out."""
    pairs = []
    for name, data in headers:
        text = _text(data)
        if text is not None and _is_text(name) and not name.startswith(OURS):
            pairs.append((name, text))
    return Properties(user_property=tuple(pairs)) if pairs else Properties()


def _text(data: bytes | None) -> str | None:
    try:
        text = (data or b"").decode()
    except UnicodeDecodeError:
        return None
    return text if _is_text(text) else None


def _is_text(text: str) -> bool:
    return "\0" not in text and len(text) <= 65_535 and len(text.encode()) <= 65_535
