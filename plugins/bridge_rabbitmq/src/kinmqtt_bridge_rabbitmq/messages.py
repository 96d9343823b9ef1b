"""What a message becomes in RabbitMQ, and a delivery in MQTT."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from pika.spec import BasicProperties

from kinmqtt_bridge_rabbitmq.frames import (
    MAX_CACHED,
    EncodedProperties,
    properties_before_identity,
    with_identity,
)
from kinmqtt_bridge_rabbitmq.settings import PublishSettings, SinkSettings, is_reserved
from kinmqtt_bridge_rabbitmq.templates import MAX_SHORT_BYTES, Incoming, is_short, mqtt_topic, routing_key, text_of
from kinmqtt_spi.properties import Properties, PropertyValues
from kinmqtt_spi.services.bridge import Poison
from kinmqtt_spi.templates import of_message
from kinmqtt_spi.values import Message

TOPIC: Final = "mqtt-topic"
QOS: Final = "mqtt-qos"
RETAIN: Final = "mqtt-retain"
CONTENT_TYPE: Final = "mqtt-content-type"
RESPONSE_TOPIC: Final = "mqtt-response-topic"
CORRELATION_DATA: Final = "mqtt-correlation-data"

MESSAGE_ID: Final = "amqp-message-id"
REDELIVERED: Final = "amqp-redelivered"
"""User properties that a source adds."""

SHORT_TOPIC: Final = 1000
"""The headers of a message with a topic up to this length, in characters, and nothing else fit into any frame."""


class Outgoing(NamedTuple):
    """A message as RabbitMQ gets it."""

    routing_key: str
    properties: BasicProperties | EncodedProperties
    identity: str
    """The broker's id of the message."""


class MessageMaker:
    """Makes messages for RabbitMQ."""

    def __init__(self, settings: SinkSettings) -> None:
        """Take settings whose templates are valid."""
        key = routing_key(settings.routing_key)
        self._key = key
        self._fixed_key = settings.routing_key if key.is_constant else None
        self._max_bytes = settings.max_message_bytes
        self._mode = 2 if settings.persistent else 1
        self._before_identity: dict[tuple[str, int, bool], bytes] = {}
        """Encoded properties, by topic, QoS and retain flag of messages that have no others."""
        self._templates = [(name, of_message(text).fill_in_present) for name, text in settings.headers.items()]

    def make(self, message: Message, max_header_bytes: int) -> Outgoing | Poison:
        """Return what is sent, whose properties have at most so many bytes, or why it can't be sent."""
        if len(message.payload) > self._max_bytes:
            return Poison(
                f"the payload has {len(message.payload)} bytes, and max_message_bytes allows {self._max_bytes}"
            )
        key = self._key.fill_in(message) if self._fixed_key is None else self._fixed_key
        if key is None:
            return Poison(f"a part of the routing key {self._key.text!r} is missing in the message, or has a slash")
        node, counter = message.id
        identity = f"{node:016x}-{counter}"
        if not message.properties and not self._templates:
            # Nothing but the id and the time is new.
            before = self._before_identity.get((message.topic, message.qos, message.retain))
            if before is not None and key.isascii() and len(key) <= MAX_SHORT_BYTES:
                return Outgoing(key, with_identity(before, identity, int(message.received_at)), identity)
        headers: dict[str, Any] = {TOPIC: message.topic, QOS: message.qos, RETAIN: message.retain}
        properties = BasicProperties(
            headers=headers, delivery_mode=self._mode, message_id=identity, timestamp=int(message.received_at)
        )
        try:
            for text in (message.topic, key):
                if not text.isascii():
                    text.encode()
            if not is_short(key):
                return Poison(f"the routing key has more than 255 bytes: {key[:100]!r}")
            if message.properties:
                _add(message.properties, properties, headers)
            for name, fill_in in self._templates:
                headers[name] = fill_in(message)
            if (message.properties or self._templates or len(message.topic) > SHORT_TOPIC) and (
                sum(map(len, properties.encode())) > max_header_bytes
            ):
                return Poison(f"its properties have more than {max_header_bytes} bytes, RabbitMQ's frame_max")
        except UnicodeEncodeError:
            return Poison("a text of it is not UTF-8")
        if not message.properties and not self._templates and len(message.topic) <= SHORT_TOPIC:
            if len(self._before_identity) >= MAX_CACHED:
                self._before_identity.clear()
            known = BasicProperties(headers=headers, delivery_mode=self._mode)
            self._before_identity[message.topic, message.qos, message.retain] = properties_before_identity(known)
        return Outgoing(key, properties, identity)


def _add(given: Properties, properties: BasicProperties, headers: dict[str, Any]) -> None:
    """Add the properties of MQTT 5. Those that AMQP has no place for, or too short a one, are headers."""
    if given.content_type is not None:
        if is_short(given.content_type):
            properties.content_type = given.content_type
        else:
            headers[CONTENT_TYPE] = given.content_type
    # Not as reply_to: that names a queue, and RabbitMQ closes the channel for some of its values.
    if given.response_topic is not None:
        headers[RESPONSE_TOPIC] = given.response_topic
    if given.correlation_data is not None:
        headers[CORRELATION_DATA] = given.correlation_data
    named: dict[str, list[str]] = {}
    for name, text in given.user_property:
        # A client must not claim another id or topic, nor choose queues by CC.
        if not is_reserved(name) and is_short(name):
            named.setdefault(name, []).append(text)
    for name, texts in named.items():
        headers[name] = texts[0] if len(texts) == 1 else texts


class Delivery(NamedTuple):
    """A message that RabbitMQ has delivered."""

    tag: int
    queue: str
    exchange: str
    routing_key: str
    redelivered: bool
    properties: BasicProperties
    body: bytes | None
    """``None`` for one that is too long, whose bytes were dropped."""


class Incomer:
    """Makes messages of deliveries."""

    def __init__(self, settings: PublishSettings) -> None:
        self._settings = settings
        self._topic = mqtt_topic(settings.topic)

    def message(self, delivery: Delivery) -> Message | None:
        """Return a delivery's message; ``None`` if it is too long, or the template makes no topic of it."""
        headers = delivery.properties.headers or {}
        topic = self._topic.fill_in(Incoming(delivery.queue, delivery.exchange, delivery.routing_key, headers))
        if topic is None or delivery.body is None:
            return None
        settings = self._settings
        properties = _to_properties(delivery, headers, settings.user_properties)
        return Message(topic, delivery.body, settings.qos, settings.retain, properties)


def _to_properties(delivery: Delivery, headers: Mapping[str, Any], user_properties: bool) -> Properties:
    found: PropertyValues = {}
    given = delivery.properties
    content_type = given.content_type or text_of(headers.get(CONTENT_TYPE))
    if content_type and _is_text(content_type):
        found["content_type"] = content_type
    response_topic = text_of(headers.get(RESPONSE_TOPIC))
    if response_topic and _is_text(response_topic) and not {"+", "#"} & set(response_topic):
        found["response_topic"] = response_topic
    data = headers.get(CORRELATION_DATA)
    if data is None and given.correlation_id:
        data = given.correlation_id
    if isinstance(data, str):
        data = data.encode("utf-8", "surrogatepass")
    if isinstance(data, bytes | bytearray) and len(data) <= 65_535:
        found["correlation_data"] = bytes(data)
    if user_properties:
        pairs = tuple(_user_properties(delivery, headers))
        if pairs:
            found["user_property"] = pairs
    return Properties(**found)


def _user_properties(delivery: Delivery, headers: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield headers as user properties; those of the bridge, and those that aren't texts of MQTT, are left out."""
    for name, value in headers.items():
        if is_reserved(name) or not _is_text(name):
            continue
        for each in value if isinstance(value, list) else (value,):
            text = text_of(each)
            if text is not None and _is_text(text):
                yield name, text
    identity = delivery.properties.message_id
    if identity and _is_text(identity):
        yield MESSAGE_ID, identity
    if delivery.redelivered:
        yield REDELIVERED, "1"


def _is_text(text: str) -> bool:
    """Tell whether MQTT can carry a text."""
    try:
        return "\0" not in text and len(text.encode()) <= 65_535
    except UnicodeEncodeError:
        return False
