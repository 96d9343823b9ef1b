"""The packet classes."""

from __future__ import annotations

import attrs
import pytest

from kinmqtt.mqtt.codec import decode
from kinmqtt.mqtt.packets import Auth, Connack, Connect, ConnectWill, PacketType, Puback, Publish, Pubrec
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.reasons import ReasonCode

SECRET = b"hunter2"


@pytest.mark.parametrize(
    "packet",
    [
        Connect(4, "c", username="ann", password=SECRET),
        Connect(5, "c", properties=Properties(authentication_method="m", authentication_data=SECRET)),
        Connect(4, "c", will=ConnectWill("t", SECRET)),
        Connack(properties=Properties(authentication_method="m", authentication_data=SECRET)),
        Auth(ReasonCode.REAUTHENTICATE, Properties(authentication_data=SECRET)),
        Publish.build("t", SECRET),
        Publish.build("t", b"", properties=Properties(correlation_data=SECRET)),
    ],
    ids=lambda packet: type(packet).__name__,
)
def test_secrets_and_payloads_stay_out_of_the_log(packet: object) -> None:
    """A repr shows the size of a password, of authentication data and of a payload, never their bytes."""
    shown = repr(packet)

    assert "hunter2" not in shown
    assert "<7 bytes>" in shown


def test_a_repr_is_readable() -> None:
    """What is no secret is shown by name."""
    assert repr(Puback(7)) == "Puback(packet_id=7, reason=<ReasonCode.SUCCESS: 0>, properties=Properties())"
    assert "topic='a/b'" in repr(Publish.build("a/b", b"x"))


def test_control_packets_are_frozen() -> None:
    """A control packet cannot be changed and has no room for other attributes."""
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Puback(1).packet_id = 2  # type: ignore[misc]
    assert not hasattr(Puback(1), "__dict__")
    assert not hasattr(Publish.build("a", b""), "__dict__")


def test_acknowledgements_of_different_types_differ() -> None:
    """Equal fields do not make packets of two types equal."""
    acknowledgements: list[object] = [Puback(1), Pubrec(1)]

    assert acknowledgements[0] != acknowledgements[1]
    assert acknowledgements[0] == Puback(1)


def test_a_received_publish_points_into_its_frame() -> None:
    """The frame is kept whole, with the offsets of the topic's end and of the payload."""
    frame = b"\x32\x09\x00\x03a/b\x00\x05hi"

    publish = decode(frame, 2, 4)

    assert isinstance(publish, Publish)
    assert publish.frame is frame
    assert frame[: publish.topic_end].endswith(b"a/b")
    assert frame[publish.payload_start :] == publish.payload == b"hi"
    assert publish.payload_size == 2


def test_publish_is_equal_by_value() -> None:
    """A received message equals one that was built from the same parts, and no other."""
    received = decode(b"\x30\x07\x00\x03a/bhi", 2, 4)

    assert received == Publish.build("a/b", b"hi")
    assert received != Publish.build("a/b", b"ho")
    assert received != Publish.build("a/b", b"hi", retain=True)
    assert received != "a/b"
    with pytest.raises(TypeError):
        hash(received)


def test_packet_types_have_the_numbers_of_the_wire() -> None:
    """The fifteen packet types are numbered from 1 (section 2.1.2)."""
    assert [int(each) for each in PacketType] == list(range(1, 16))
