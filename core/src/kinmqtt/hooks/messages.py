"""What a message that a plugin made must be like: what a PUBLISH packet can carry."""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.codec.publish import publish_parts
from kinmqtt.mqtt.errors import LocalError, RemoteError
from kinmqtt.mqtt.packets import V5, Publish
from kinmqtt.mqtt.topics import check_topic_name
from kinmqtt_spi.values import Message

PLUGIN_VALUES_PREFIX: Final = "$plugin/"
"""Topics under which plugins keep values in the retain store. No message comes from there or goes there."""


def check_message(message: Message) -> None:
    """Raise ``ValueError`` for a message that a plugin made and that no PUBLISH can carry, or none may."""
    if message.topic.startswith(PLUGIN_VALUES_PREFIX):
        raise ValueError(
            f"{message.topic!r}: topics below {PLUGIN_VALUES_PREFIX} are where plugins keep values of their own"
        )
    try:
        check_topic_name(message.topic)
    except RemoteError as error:
        raise ValueError(f"{message.topic!r} is no topic name: {error.text}") from None
    if message.qos not in (0, 1, 2):
        raise ValueError(f"{message.qos!r} is no QoS")
    if not isinstance(message.payload, bytes):
        raise ValueError(f"a payload is bytes, not {type(message.payload).__name__}")
    try:
        publish_parts(Publish.build(message.topic, b""), V5, 0, False, message.properties)
    except (LocalError, ValueError, TypeError) as error:
        raise ValueError(f"its properties or topic can't be encoded: {error}") from None
