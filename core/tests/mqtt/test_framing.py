"""The framer."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.corpus import ENTRIES
from kinmqtt.mqtt.errors import MalformedPacket, PacketTooLarge
from kinmqtt.mqtt.framing import LARGEST_PACKET, Framer
from kinmqtt_spi.reasons import ReasonCode

PING = b"\xc0\x00"


def packet(body_size: int, length: bytes) -> bytes:
    """A packet whose Remaining Length is spelt out."""
    return b"\x30" + length + bytes(body_size)


SIZES = [
    (0, b"\x00"),
    (127, b"\x7f"),
    (128, b"\x80\x01"),
    (16_383, b"\xff\x7f"),
    (16_384, b"\x80\x80\x01"),
    (2_097_151, b"\xff\xff\x7f"),
    (2_097_152, b"\x80\x80\x80\x01"),
]


@pytest.mark.parametrize(("size", "length"), SIZES)
def test_every_length_of_length_is_read(size: int, length: bytes) -> None:
    """A Remaining Length of one to four bytes gives the packet and the offset of its body."""
    whole = packet(size, length)

    assert Framer().feed(whole + PING) == [(whole, 1 + len(length)), (PING, 2)]


@pytest.mark.parametrize(("size", "length"), SIZES[:5])
def test_bytes_one_at_a_time(size: int, length: bytes) -> None:
    """A packet that comes byte by byte comes out with its last byte."""
    framer = Framer()
    whole = packet(size, length)

    frames = [framer.feed(whole[i : i + 1]) for i in range(len(whole))]

    assert frames[:-1] == [[]] * (len(whole) - 1)
    assert frames[-1] == [(whole, 1 + len(length))]
    assert framer.buffered_bytes == 0


def test_a_large_packet_byte_by_byte_takes_linear_time() -> None:
    """Twice the bytes, fed one by one, take about twice the time."""

    def seconds(size: int) -> float:
        framer = Framer()
        framer.feed(b"\x30" + bytes((size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14)))
        started = time.process_time()
        for _ in range(size - 1):
            framer.feed(b"x")
        spent = time.process_time() - started
        assert framer.buffered_bytes == 4 + size - 1
        return spent

    small = min(seconds(50_000) for _ in range(3))
    large = min(seconds(400_000) for _ in range(3))

    assert large < small * 8 * 4


def test_the_remainder_is_all_that_is_held() -> None:
    """Only the incomplete packet is buffered, and nothing once it is complete."""
    framer = Framer()

    assert framer.feed(PING + PING + b"\x30\x05abc") == [(PING, 2), (PING, 2)]
    assert framer.buffered_bytes == 5
    assert framer.feed(b"de") == [(b"\x30\x05abcde", 2)]
    assert framer.buffered_bytes == 0


def test_frames_are_bytes() -> None:
    """A frame that was put together from pieces is as immutable as any other."""
    framer = Framer()
    framer.feed(b"\x30\x05ab")

    [(frame, _)] = framer.feed(b"cde")

    assert type(frame) is bytes


@pytest.mark.parametrize("data", [b"\x30\x80\x80\x80\x80\x01", b"\x30\xff\xff\xff\xff", b"\xc0\x80\x80\x80\x80\x00"])
def test_a_fifth_length_byte_is_malformed(data: bytes) -> None:
    """The fourth length byte must not announce a fifth (section 1.5.5)."""
    framer = Framer()

    assert framer.feed(PING + data) == [(PING, 2)]
    assert isinstance(framer.error, MalformedPacket)


@pytest.mark.parametrize(
    "data", [b"\xc0\x80\x00", b"\xc0\x80\x80\x00", b"\xc0\x82\x80\x80\x00ab", b"\x30\xff\x80\x00"]
)
def test_a_padded_length_is_malformed(data: bytes) -> None:
    """A Remaining Length takes the fewest bytes (MQTT-1.5.5-1)."""
    framer = Framer()

    assert framer.feed(data) == []
    assert isinstance(framer.error, MalformedPacket)
    assert framer.error.clause == "MQTT-1.5.5-1"


def test_good_packets_before_a_violation_are_kept() -> None:
    """The packets before a violation are returned, and nothing after it."""
    framer = Framer(10)

    assert framer.feed(PING + b"\x30\x09" + bytes(9) + PING) == [(PING, 2)]
    assert isinstance(framer.error, PacketTooLarge)
    assert framer.error.reason == ReasonCode.PACKET_TOO_LARGE
    assert framer.feed(PING) == []
    assert framer.buffered_bytes == 0


@pytest.mark.parametrize(("limit", "length", "accepted"), [(129, b"\x7f", True), (128, b"\x7f", False)])
def test_the_limit_counts_the_whole_packet(limit: int, length: bytes, accepted: bool) -> None:
    """Maximum Packet Size includes the fixed header (section 3.1.2.11.4)."""
    framer = Framer(limit)

    framer.feed(b"\x30" + length)

    assert (framer.error is None) is accepted


def test_an_oversized_packet_is_refused_by_its_header() -> None:
    """No byte of a packet that is too large is buffered (MQTT-3.2.2-15)."""
    framer = Framer(1000)

    for byte in b"\x30\xff\xff":
        assert framer.feed(bytes((byte,))) == []
        assert framer.error is None
    framer.feed(b"\x7f")

    assert isinstance(framer.error, PacketTooLarge)
    assert framer.buffered_bytes == 0


def test_the_limit_may_change() -> None:
    """A new limit holds for the packets whose headers come after it."""
    framer = Framer(4)
    framer.feed(b"\x40")
    framer.max_packet_bytes = 3

    framer.feed(b"\x02")

    assert isinstance(framer.error, PacketTooLarge)


def test_nothing_is_no_packet() -> None:
    """An empty chunk changes nothing."""
    framer = Framer()

    assert framer.feed(b"") == []
    framer.feed(b"\xc0")
    assert framer.feed(b"") == []
    assert framer.buffered_bytes == 1


def test_the_default_limit_is_the_protocols() -> None:
    """Without a limit of its own a framer takes whatever MQTT can express."""
    framer = Framer()

    framer.feed(b"\x30\xff\xff\xff\x7f")

    assert framer.error is None
    assert framer.max_packet_bytes == LARGEST_PACKET


@given(
    st.lists(st.sampled_from(sorted(ENTRIES)), max_size=6),
    st.binary(max_size=12),
    st.lists(st.integers(0, 400), max_size=12),
    st.sampled_from([20, 130, LARGEST_PACKET]),
)
def test_chunks_do_not_matter(names: list[str], junk: bytes, cuts: list[int], limit: int) -> None:
    """However a stream is cut into chunks, the packets and the error are the same."""
    stream = b"".join(ENTRIES[name].data for name in names) + junk
    at_once = Framer(limit)
    expected = at_once.feed(stream)
    framer = Framer(limit)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]

    frames = [frame for a, b in pairwise(edges) for frame in framer.feed(stream[a:b])]

    assert frames == expected
    assert str(framer.error) == str(at_once.error)
    assert framer.buffered_bytes == at_once.buffered_bytes


@given(
    st.lists(st.sampled_from([PING, packet(3, b"\x03"), packet(200, b"\xc8\x01"), b"\x30\x80\x00"]), max_size=30),
    st.lists(st.integers(1, 60), max_size=30),
    st.lists(st.booleans(), max_size=30),
    st.integers(1, 5),
)
def test_a_few_at_a_time_are_the_same_packets(
    whole: list[bytes], sizes: list[int], held: list[bool], most: int
) -> None:
    """However a stream comes, and whether or not it is held first, bounded calls cut what one call cuts."""
    stream = b"".join(whole)
    reference = Framer()
    wanted = reference.feed(stream)
    framer = Framer(most_frames=most)
    frames = []

    chunks = []
    for size in sizes:
        chunks.append(stream[:size])
        stream = stream[size:]
    for number, chunk in enumerate([*chunks, stream]):
        if number < len(held) and held[number]:
            framer.hold(chunk)
            continue
        cut = framer.feed(chunk)
        assert len(cut) <= most
        frames += cut
    while framer.is_behind:
        cut = framer.feed(b"")
        assert len(cut) <= most
        frames += cut

    assert frames == wanted
    assert type(framer.error) is type(reference.error)
    assert framer.buffered_bytes == reference.buffered_bytes
