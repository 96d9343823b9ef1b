"""Encoding and decoding as a whole."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.strategies import packets, versions
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.errors import LocalError, RemoteError
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import Packet, PacketType

sendable = versions.flatmap(lambda version: st.tuples(packets(version), st.just(version)))


@given(sendable)
def test_round_trip(case: tuple[Packet, int]) -> None:
    """Every packet that can be sent arrives as it was, in every version."""
    packet, version = case

    [(frame, body)] = Framer().feed(encode(packet, version))

    assert decode(frame, body, version) == packet


@given(st.lists(sendable, max_size=5))
def test_packets_in_a_row(sent: list[tuple[Packet, int]]) -> None:
    """Packets that follow each other in one stream come out one by one."""
    stream = b"".join(encode(packet, version) for packet, version in sent)

    frames = Framer().feed(stream)

    assert len(frames) == len(sent)
    for (frame, body), (packet, version) in zip(frames, sent, strict=True):
        assert decode(frame, body, version) == packet


@given(st.integers(0, 255), st.binary(max_size=60), versions)
def test_random_bodies_raise_nothing_but_remote_errors(first: int, body: bytes, version: int) -> None:
    """A frame of random bytes is a packet, or an error of the peer's with a reason code."""
    frame = bytes((first, len(body))) + body
    try:
        packet = decode(frame, 2, version)
    except RemoteError as error:
        assert error.reason.is_failure
    else:
        assert type(packet).__name__.removesuffix("Packet").upper() == PacketType(first >> 4).name


@given(sendable, st.data())
def test_damaged_packets_raise_nothing_but_remote_errors(case: tuple[Packet, int], data: st.DataObject) -> None:
    """With one byte overwritten, a packet is an error of the peer's, or one that can be sent again."""
    packet, version = case
    [(frame, body)] = Framer().feed(encode(packet, version))
    index = data.draw(st.integers(0, len(frame) - 1).filter(lambda at: at == 0 or at >= body))
    damaged = frame[:index] + bytes((data.draw(st.integers(0, 255)),)) + frame[index + 1 :]

    try:
        received = decode(damaged, body, version)
    except RemoteError as error:
        assert error.reason.is_failure
    else:
        [(again, start)] = Framer().feed(encode(received, version))
        assert decode(again, start, version) == received


@given(st.binary(max_size=200), versions)
def test_random_streams_raise_nothing_but_remote_errors(stream: bytes, version: int) -> None:
    """Random bytes, framed and decoded, give packets and errors of the peer's."""
    framer = Framer(1 << 16)
    for frame, body in framer.feed(stream):
        try:
            decode(frame, body, version)
        except RemoteError as error:
            assert error.reason.is_failure
    assert framer.error is None or framer.error.reason.is_failure


def test_only_packets_can_be_encoded() -> None:
    """Something that is no packet is a fault of ours."""
    with pytest.raises(LocalError, match="str is not a packet"):
        encode("CONNECT", 4)  # type: ignore[arg-type]
