"""The error classes."""

from __future__ import annotations

import pytest

from kinmqtt.mqtt.errors import (
    LocalError,
    MalformedPacket,
    MqttError,
    PacketTooLarge,
    ProtocolError,
    RemoteError,
    UnsupportedVersion,
)
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (MalformedPacket("x"), 0x81),
        (ProtocolError("x"), 0x82),
        (UnsupportedVersion(6, "x"), 0x84),
        (PacketTooLarge("x"), 0x95),
    ],
)
def test_subclasses_know_their_reason_code(error: RemoteError, reason: int) -> None:
    """Each subclass of RemoteError answers with its own reason code."""
    assert error.reason == ReasonCode(reason)
    assert error.text == "x"
    assert error.clause == ""


def test_any_reason_can_be_raised() -> None:
    """A RemoteError takes any reason code with a text and a clause, and shows all three."""
    error = RemoteError(ReasonCode.TOPIC_ALIAS_INVALID, "a Topic Alias of 0", "MQTT-3.3.2-8")

    assert (error.reason, error.clause) == (0x94, "MQTT-3.3.2-8")
    assert str(error) == "a Topic Alias of 0 (0x94 TOPIC_ALIAS_INVALID) [MQTT-3.3.2-8]"


def test_unsupported_version_keeps_the_level() -> None:
    """The level that was asked for is at hand for the log."""
    assert UnsupportedVersion(6, "too new").level == 6


def test_faults_are_told_apart() -> None:
    """A LocalError is no RemoteError, and both are MqttErrors."""
    assert not issubclass(LocalError, RemoteError)
    assert issubclass(LocalError, MqttError)
    assert issubclass(RemoteError, MqttError)
