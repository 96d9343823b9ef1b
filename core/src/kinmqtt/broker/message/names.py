"""Control characters in names: refused from clients and from plugins alike, unless the settings allow them."""

from __future__ import annotations

from kinmqtt.hooks.messages import check_message
from kinmqtt.mqtt.characters import check_characters
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.values import Message


def check_names(limits: LimitSettings, *names: str | None) -> None:
    """Raise :class:`~kinmqtt.mqtt.errors.MalformedPacket` for a name in a client's packet that may not be."""
    if limits.refuses_control_characters:
        check_characters(*names)


def check_made_message(limits: LimitSettings, message: Message, original: Message | None = None) -> None:
    """Raise ``ValueError`` for a message of a plugin's making that no PUBLISH can carry, or may for its names."""
    check_message(message)
    check_made_names(limits, message, original)


def check_made_names(limits: LimitSettings, message: Message, original: Message | None = None) -> None:
    """Raise ``ValueError`` for a message of a plugin's making whose names no client may use.

    A name that the ``original`` has too is not of the plugin's making: it may be older than the settings.
    """
    _check(limits, "topic", message.topic, None if original is None else original.topic)
    response_topic = message.properties.response_topic
    if response_topic is not None:
        _check(
            limits,
            "response topic",
            response_topic,
            None if original is None else original.properties.response_topic,
        )


def _check(limits: LimitSettings, what: str, name: str, before: str | None) -> None:
    problem = None if name == before else limits.problem_with_characters(name)
    if problem is not None:
        raise ValueError(f'the {what} {name!r}: {problem}; limits.control_characters = "allow" lets it pass')
