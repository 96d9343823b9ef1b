"""What a message becomes in Kafka, and a record in MQTT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kinmqtt_bridge_kafka.settings import OURS, PublishSettings
from kinmqtt_bridge_kafka.templates import Incoming, mqtt_topic
from kinmqtt_kafka_kit.delivery import Header
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.templates import of_message
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

CACHED_TOPICS: Final = 4096
"""The topics whose first headers are cached. Clients choose topics, so the memory for them must be bounded."""

LONGEST_CACHED_TOPIC: Final = 256
"""In characters."""


class HeaderMaker:
    """Makes the headers of messages."""

    def __init__(self, more: Mapping[str, str]) -> None:
        """``more`` are the settings' own headers, whose templates are valid."""
        self._templates = [(name, of_message(text).fill_in_present) for name, text in more.items()]
        self._cached: dict[tuple[str, int, bool], tuple[tuple[Header, ...], int]] = {}
        self._node: tuple[int, bytes] = (0, b"%016x-" % 0)

    def make(self, message: Message) -> tuple[list[Header], int]:
        """Return a message's headers, and at least their size in bytes."""
        kind = (message.topic, message.qos, message.retain)
        first, size = self._cached.get(kind) or self._first(kind)
        node, counter = message.id
        if node != self._node[0]:
            self._node = (node, b"%016x-" % node)
        headers = [*first, (ID, b"%b%d" % (self._node[1], counter))]
        if message.properties:
            more = _of_properties(message.properties)
            headers += more
            size += _size(more)
        if self._templates:
            more = [(name, fill_in(message).encode("utf-8", "surrogatepass")) for name, fill_in in self._templates]
            headers += more
            size += _size(more)
        return headers, size

    def _first(self, kind: tuple[str, int, bool]) -> tuple[tuple[Header, ...], int]:
        topic, qos, retain = kind
        first = ((TOPIC, topic.encode("utf-8", "surrogatepass")), _DIGITS[qos], _FLAGS[retain])
        made = (first, _size(first) + _ID_BYTES)
        if len(topic) <= LONGEST_CACHED_TOPIC:
            if len(self._cached) >= CACHED_TOPICS:
                self._cached.clear()
            self._cached[kind] = made
        return made


def _size(headers: Sequence[Header]) -> int:
    """Return at least the size of headers in bytes: a character of a name counts as the most that one can take."""
    return sum(
        HEADER_OVERHEAD + (len(name) if name.isascii() else 4 * len(name)) + len(data) for name, data in headers
    )


_ID_BYTES: Final = HEADER_OVERHEAD + len(ID) + 16 + 1 + 20


def _of_properties(properties: Properties) -> list[Header]:
    found: list[Header] = []
    if properties.content_type is not None:
        found.append((CONTENT_TYPE, properties.content_type.encode()))
    if properties.response_topic is not None:
        found.append((RESPONSE_TOPIC, properties.response_topic.encode()))
    if properties.correlation_data is not None:
        found.append((CORRELATION_DATA, properties.correlation_data))
    # A client must not claim another id or topic: some consumers read the last header of a name, others the first.
    found += [(name, text.encode()) for name, text in properties.user_property if not name.startswith(OURS)]
    return found


class Incomer:
    """Makes messages of records."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._topic = mqtt_topic(settings.topic)

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
