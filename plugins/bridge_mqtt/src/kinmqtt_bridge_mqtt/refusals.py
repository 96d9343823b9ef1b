"""What the reason codes of a far broker mean for a bridge."""

from __future__ import annotations

from typing import Final

from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.services.bridge import REFUSED_PAUSE_S, Answer, Poison, Retry

UNSUPPORTED_VERSION: Final = 0x84
NOT_AUTHORIZED: Final = 0x87


class UnsupportedVersion(SinkRefused):
    """The far broker does not speak this version of MQTT, or knows no bridges."""


_REFUSED: Final = {
    0x80: "",
    0x82: "",
    0x84: "check version and bridge",
    0x85: "check client_id",
    0x86: "check username and password_file",
    0x87: "check username, password_file and the rights of the user there",
    0x8A: "the client is banned there",
    0x8C: "it wants another authentication method",
    0x8E: "another client has the same client id: give each bridge its own client_id",
    0x90: "check notification_topic",
    0x98: "an administrator there has ended the connection",
    0x9A: "it has no retained messages: set notifications = false",
    0x9B: "it has no QoS 1: set notifications = false",
    0x9D: "the broker has moved: check servers",
}
"""Reasons that an operator must do something about."""

_POISON: Final = frozenset({0x90, 0x95, 0x99, 0x9A})
"""Reasons of a PUBACK that the same message would get again: its topic, its size, its payload, retained."""


def error_of(value: int, text: str, during: str) -> SinkRefused | ServiceUnavailable:
    """Return the error of a reason in CONNACK or DISCONNECT."""
    line = f"the far broker {during}: {text} (0x{value:02X})"
    if value in _REFUSED:
        hint = _REFUSED[value]
        kind = UnsupportedVersion if value == UNSUPPORTED_VERSION else SinkRefused
        return kind(f"{line}; {hint}" if hint else line)
    return ServiceUnavailable(line)


def answer_of(value: int, text: str, topic: str) -> Answer:
    """Return a sink's answer for a reason in PUBACK."""
    if value < 0x80:
        return None
    line = f"the far broker refuses a message to {topic[:100]!r}: {text} (0x{value:02X})"
    if value in _POISON:
        return Poison(line)
    return Retry(line, REFUSED_PAUSE_S if value == NOT_AUTHORIZED else None)
