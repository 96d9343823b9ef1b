"""CONNECT and CONNACK beyond the corpus."""

from __future__ import annotations

import pytest

from core_harness.corpus import ENTRIES
from kinmqtt.mqtt.codec import decode, encode, peek_version
from kinmqtt.mqtt.errors import LocalError, UnsupportedVersion
from kinmqtt.mqtt.packets import Connack, Connect, ConnectWill
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode


@pytest.mark.parametrize(
    ("name", "level"),
    [
        ("connect-31-minimal", 3),
        ("connect-311-minimal", 4),
        ("connect-5-minimal", 5),
        ("connect-5-cut-property", 5),
        ("connect-311-header-flags", 4),
        ("connect-level-6-unreadable-rest", 6),
        ("connect-bridge-level-131", 131),
        ("connect-name-in-lower-case", None),
        ("connect-name-only", None),
        ("connect-empty-body", None),
        ("pingreq", None),
    ],
)
def test_the_version_can_be_peeked_at(name: str, level: int | None) -> None:
    """The level of a CONNECT is known even where the rest is damaged, for the answer depends on it."""
    entry = ENTRIES[name]

    assert peek_version(entry.data, entry.body) == level


def test_the_level_is_in_the_error() -> None:
    """A version that is not spoken is reported with its level."""
    entry = ENTRIES["connect-level-6"]

    with pytest.raises(UnsupportedVersion) as caught:
        decode(entry.data, entry.body, 4)

    assert caught.value.level == 6


@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_connect_names_its_own_version(version: int) -> None:
    """A CONNECT decodes by its own level, whatever version is given."""
    entry = ENTRIES["connect-5-all-properties"]

    packet = decode(entry.data, entry.body, version)

    assert isinstance(packet, Connect)
    assert packet.version == 5


@pytest.mark.parametrize(
    "packet",
    [
        Connect(6, "c"),
        Connect(4, "", clean_start=False),
        Connect(3, ""),
        Connect(4, "c", password=b"x"),
        Connect(4, "c", keep_alive=65_536),
        Connect(4, "c", will=ConnectWill("a/#", b"")),
        Connect(4, "c", will=ConnectWill("", b"")),
        Connect(4, "c", will=ConnectWill("a", b"", qos=3)),
        Connect(4, "c", will=ConnectWill("a", bytes(65_536))),
        Connect(5, "c", properties=Properties(topic_alias=1)),
    ],
)
def test_connects_that_cannot_be_sent(packet: Connect) -> None:
    """What a CONNECT cannot say is a fault of ours."""
    with pytest.raises(LocalError):
        encode(packet, packet.version)


def test_a_refusal_has_no_session() -> None:
    """Session Present with a failure cannot be sent (MQTT-3.2.2-6)."""
    with pytest.raises(LocalError):
        encode(Connack(True, ReasonCode.NOT_AUTHORIZED), 4)


def test_a_connack_carries_its_own_reasons() -> None:
    """A reason code of another packet cannot be sent (MQTT-3.2.2-8)."""
    with pytest.raises(LocalError):
        encode(Connack(False, ReasonCode.SESSION_TAKEN_OVER), 5)


def test_old_connacks_leave_out_what_they_cannot_say() -> None:
    """Properties, and in 3.1 Session Present, are left out; reasons become return codes."""
    packet = Connack(True, ReasonCode.SUCCESS, Properties(receive_maximum=5))

    assert encode(packet, 3) == b"\x20\x02\x00\x00"
    assert encode(packet, 4) == b"\x20\x02\x01\x00"
    assert encode(Connack(False, ReasonCode.BANNED), 4) == b"\x20\x02\x00\x05"
