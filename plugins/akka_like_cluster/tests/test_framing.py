"""Frames: the same ones whatever pieces they arrive in, and bad ones detected early."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.net.framing import HEADER_BYTES, Frame, FrameDecoder, encode
from kinmqtt_spi.mesh.frames import MalformedFrame

KINDS = frozenset(range(1, 9))
frames = st.builds(Frame, st.sampled_from(sorted(KINDS)), st.integers(0, 2**64 - 1), st.binary(max_size=50))


@given(st.lists(frames, max_size=10), st.binary(max_size=HEADER_BYTES - 1), st.data())
def test_frames_survive_any_cut(sent: list[Frame], rest: bytes, data: st.DataObject) -> None:
    """What was encoded is decoded, however the stream is cut, and what follows is kept."""
    # A length of zero and a known type, so that the rest is no bad header.
    stream = b"".join(encode(*frame) for frame in sent) + (b"\0\0\0\0\1" + b"\0" * 8)[: len(rest)]
    decoder = FrameDecoder(KINDS)
    received: list[Frame] = []

    position = 0
    while position < len(stream):
        size = data.draw(st.integers(1, len(stream) - position))
        received += decoder.feed(stream[position : position + size])
        position += size

    assert received == sent
    assert len(decoder.rest()) == len(rest)
    assert decoder.rest() == b""


def test_an_iterator_left_early_loses_nothing() -> None:
    """The next call returns what the one before has not."""
    decoder = FrameDecoder(KINDS)
    first, second = Frame(1, 1, b"a"), Frame(2, 2, b"b")

    assert next(decoder.feed(encode(*first) + encode(*second))) == first

    assert list(decoder.feed(b"")) == [second]


def test_a_length_is_checked_before_the_rest_of_the_header() -> None:
    """Noise is detected by its first four bytes."""
    with pytest.raises(MalformedFrame, match="above 100"):
        list(FrameDecoder(KINDS, limit_bytes=100).feed(b"\x00\x00\x00\x58"))


def test_the_limit_includes_the_header() -> None:
    """A frame of exactly the limit is accepted."""
    decoder = FrameDecoder(KINDS, limit_bytes=100)

    assert list(decoder.feed(encode(1, 0, bytes(87)))) == [Frame(1, 0, bytes(87))]
    with pytest.raises(MalformedFrame):
        list(decoder.feed(encode(1, 0, bytes(88))))


def test_an_unknown_type_is_refused_before_its_body() -> None:
    """The fifth byte is enough; frames before it are returned."""
    decoder = FrameDecoder(KINDS)
    received: list[Frame] = []

    with pytest.raises(MalformedFrame, match="unknown type 9"):
        for frame in decoder.feed(encode(1, 0) + b"\0\0\0\0\x09"):
            received.append(frame)

    assert received == [Frame(1, 0, b"")]
