"""Checks that a PUBLISH packet can carry a message that a plugin made."""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.codec.publish import publish_parts
from kinmqtt.mqtt.errors import LocalError, RemoteError
from kinmqtt.mqtt.packets import V5, Publish
from kinmqtt.mqtt.topics import check_topic_filter, check_topic_name
from kinmqtt_spi.values import Message

PLUGIN_VALUES_PREFIX: Final = "$plugin/"
"""Topics in the retain store that hold plugins' values. No message is published to them or delivered from them."""


def check_filter(filter: str) -> None:
    """Raise ``ValueError`` if a text is no topic filter."""
    try:
        check_topic_filter(filter)
    except RemoteError as error:
        raise ValueError(f"{filter!r} is no topic filter: {error.text}") from None


def check_message(message: Message) -> None:
    """Raise ``ValueError`` if no PUBLISH packet can carry a plugin's message, or if its topic is reserved."""
    if message.topic.startswith(PLUGIN_VALUES_PREFIX):
        raise ValueError(f"{message.topic!r}: topics below {PLUGIN_VALUES_PREFIX} are reserved for plugins' values")
    try:
        check_topic_name(message.topic)
    except RemoteError as error:
        raise ValueError(f"{message.topic!r} is not a topic name: {error.text}") from None
    if message.qos not in (0, 1, 2):
        raise ValueError(f"{message.qos!r} is not a QoS")
    if not isinstance(message.payload, bytes):
        raise ValueError(f"a payload must be bytes, not {type(message.payload).__name__}")
    try:
        publish_parts(Publish.build(message.topic, b""), V5, 0, False, message.properties)
    except (LocalError, ValueError, TypeError) as error:
        raise ValueError(f"the message's properties or topic can't be encoded: {error}") from None
