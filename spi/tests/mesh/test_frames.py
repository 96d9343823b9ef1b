"""Frames of a link."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.mesh.frames import (
    ACK,
    DELIVER,
    FAILURE,
    HEADER_BYTES,
    HELLO,
    MAX_FRAME_BYTES,
    PUSH,
    FrameDecoder,
    Hello,
    MalformedFrame,
    encode,
)

FRAMES = st.lists(st.tuples(st.integers(HELLO, FAILURE), st.integers(0, 2**64 - 1), st.binary(max_size=300)))


def pieces_of(data: bytes, cuts: list[int]) -> list[bytes]:
    """Cut bytes at these places."""
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    return [data[start:end] for start, end in pairwise(places)]


@given(frames=FRAMES, cuts=st.lists(st.integers(0, 10_000), max_size=30))
def test_frames_arrive_whole_in_any_pieces(frames: list[tuple[int, int, bytes]], cuts: list[int]) -> None:
    """Whatever pieces a stream is fed in, the same frames come out, in order."""
    stream = b"".join(encode(*frame) for frame in frames)
    decoder = FrameDecoder()

    decoded = [frame for piece in pieces_of(stream, cuts) for frame in decoder.feed(piece)]

    assert decoded == frames


@given(noise=st.lists(st.binary(min_size=1, max_size=200), max_size=30))
def test_noise_is_refused_or_waited_for(noise: list[bytes]) -> None:
    """Noise raises MalformedFrame or waits for more; never is more kept than was fed, or than the limit."""
    decoder = FrameDecoder(limit_bytes=500)
    kept = 0
    try:
        for piece in noise:
            list(decoder.feed(piece))
            kept = sum(len(each) for each in decoder._pieces)
            assert kept < 500
    except MalformedFrame:
        pass


def test_a_long_frame_is_refused_by_its_header() -> None:
    """The limit includes the header; a frame above it is refused before its body arrives."""
    just, above = FrameDecoder(100), FrameDecoder(100)
    body = bytes(100 - HEADER_BYTES)

    [(_, _, taken)] = just.feed(encode(PUSH, 1, body))
    with pytest.raises(MalformedFrame, match="101 bytes, above 100"):
        list(above.feed(encode(PUSH, 1, body + b"x")[:HEADER_BYTES]))

    assert taken == body


@pytest.mark.parametrize("kind", [0, FAILURE + 1, 255])
def test_an_unknown_type_is_refused(kind: int) -> None:
    """A type that this version does not know is refused by its header, after the valid frames before it."""
    decoder = FrameDecoder()
    frames = []

    with pytest.raises(MalformedFrame, match=f"unknown type {kind}"):
        for frame in decoder.feed(encode(ACK, 7) + encode(kind, 1)):
            frames.append(frame)

    assert frames == [(ACK, 7, b"")]


def test_a_large_frame_is_joined_once() -> None:
    """A frame of many pieces is complete with its last one, and what follows it is read too."""
    body = bytes(MAX_FRAME_BYTES - HEADER_BYTES)
    stream = encode(DELIVER, 1, body) + encode(ACK, 2)
    decoder = FrameDecoder()

    frames = [frame for at in range(0, len(stream), 65_536) for frame in decoder.feed(stream[at : at + 65_536])]

    assert [(kind, sequence, len(body)) for kind, sequence, body in frames] == [(DELIVER, 1, len(body)), (ACK, 2, 0)]


def test_bodies_are_bytes() -> None:
    """A bytearray or a memoryview may be fed; bodies are bytes that do not change with it."""
    buffer = bytearray(encode(PUSH, 1, b"body"))

    [(_, _, body)] = FrameDecoder().feed(memoryview(buffer))  # type: ignore[arg-type]
    buffer[-1] = 0

    assert body == b"body"
    assert type(body) is bytes


def test_a_hello_is_read_as_it_was_written() -> None:
    """A HELLO is read as it was written, also with the additions of a later version."""
    hello = Hello(1, 3, 2**64 - 1, 7, 2**40)

    assert Hello.unpack(hello.pack()) == hello
    assert Hello.unpack(hello.pack() + b"more") == hello


@given(body=st.binary(max_size=40))
def test_another_protocol_is_no_hello(body: bytes) -> None:
    """What does not begin with this protocol's mark, or is too short, raises MalformedFrame."""
    with pytest.raises(MalformedFrame):
        Hello.unpack(b"x" + body)
