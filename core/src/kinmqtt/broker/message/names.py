"""Checks for control characters in names from clients and plugins; the settings may allow them."""

from __future__ import annotations

from kinmqtt.hooks.messages import check_message
from kinmqtt.mqtt.characters import check_characters
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.values import Message


def check_names(limits: LimitSettings, *names: str | None) -> None:
    """Raise :class:`~kinmqtt.mqtt.errors.MalformedPacket` for an invalid name in a client's packet."""
    if limits.refuses_control_characters:
        check_characters(*names)


def check_made_message(limits: LimitSettings, message: Message, original: Message | None = None) -> None:
    """Raise ``ValueError`` for a plugin's message that no PUBLISH can carry, or with invalid names."""
    check_message(message)
    check_made_names(limits, message, original)


def check_made_names(limits: LimitSettings, message: Message, original: Message | None = None) -> None:
    """Raise ``ValueError`` for invalid names in a plugin's message.

    Names equal to those of the ``original`` are not checked: they may be older than the settings.
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
        raise ValueError(f'the {what} {name!r}: {problem}; limits.control_characters = "allow" permits it')
