"""The codec over the named corpus."""

from __future__ import annotations

import pytest

from core_harness.corpus import ENTRIES, Entry, cases, describe
from kinmqtt.mqtt.codec import decode, encode
from kinmqtt.mqtt.codec.primitives import write_varint
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.framing import Framer
from kinmqtt.mqtt.packets import Packet, PacketType
from kinmqtt_spi.reasons import ReasonCode

EVERY = [pytest.param(entry, version, id=name) for name, entry, version in cases()]
GOOD = [pytest.param(entry, version, id=name) for name, entry, version in cases(good=True)]
BAD = [pytest.param(entry, version, id=name) for name, entry, version in cases(good=False)]
FRAMED = [pytest.param(entry, version, id=name) for name, entry, version in cases() if not entry.framing]


def receive(data: bytes, version: int) -> list[Packet]:
    """Frame and decode, as a receiver does; raises RemoteError, and nothing else."""
    framer = Framer(1 << 20)
    frames = framer.feed(data)
    packets = [decode(frame, body, version) for frame, body in frames]
    if framer.error is not None:
        raise framer.error
    return packets


def receive_anything(data: bytes, version: int) -> None:
    """Receive, and accept an error of the peer's that names a failure."""
    try:
        receive(data, version)
    except RemoteError as error:
        assert isinstance(error.reason, ReasonCode)
        assert error.reason.is_failure
        assert error.text


def test_the_corpus_covers_the_protocol() -> None:
    """Every packet type occurs in every version that has it, good and bad, and from its sender."""
    good = {(entry.expected["type"], version) for _, entry, version in cases(good=True) if entry.expected}
    bad = {(entry.data[0] >> 4, version) for _, entry, version in cases(good=False)}
    wanted = {(kind, version) for kind in PacketType for version in (3, 4, 5)}
    wanted -= {(PacketType.AUTH, 3), (PacketType.AUTH, 4)}

    assert len(ENTRIES) >= 200
    assert {(kind.name, version) for kind, version in wanted} == good
    assert {(int(kind), version) for kind, version in wanted} <= bad
    assert {entry.direction for entry in ENTRIES.values()} == {"client", "server"}


@pytest.mark.parametrize(("entry", "version"), GOOD)
def test_good_packets_decode_as_stated(entry: Entry, version: int) -> None:
    """A good packet has the fields that the corpus states, and no others."""
    [packet] = receive(entry.data, version)

    assert describe(packet) == entry.expected


@pytest.mark.parametrize(("entry", "version"), BAD)
def test_bad_packets_are_refused_as_stated(entry: Entry, version: int) -> None:
    """A bad packet is refused with the reason code and the clause that the corpus states."""
    with pytest.raises(RemoteError) as caught:
        receive(entry.data, version)

    assert caught.value.reason is entry.reason
    assert caught.value.clause == entry.clause


@pytest.mark.parametrize(("entry", "version"), BAD)
def test_the_framer_judges_headers_only(entry: Entry, version: int) -> None:
    """The framer refuses the packets that the corpus marks so, and passes on all others."""
    framer = Framer(1 << 20)

    frames = framer.feed(entry.data)

    assert (framer.error is not None) is entry.framing
    assert frames == ([] if entry.framing else [(entry.data, entry.body)])


@pytest.mark.parametrize(("entry", "version"), GOOD)
def test_what_was_decoded_can_be_sent(entry: Entry, version: int) -> None:
    """A decoded packet is encoded to bytes that decode to an equal one."""
    [packet] = receive(entry.data, version)

    again = encode(packet, version)

    assert receive(again, version) == [packet]
    assert len(again) <= len(entry.data)


@pytest.mark.parametrize(("entry", "version"), FRAMED)
def test_a_prefix_is_incomplete(entry: Entry, version: int) -> None:
    """No strict prefix of a packet is a packet: the framer waits for more."""
    for size in range(len(entry.data)):
        framer = Framer(1 << 20)

        assert framer.feed(entry.data[:size]) == []
        assert framer.error is None
        assert framer.buffered_bytes == size


@pytest.mark.parametrize(("entry", "version"), FRAMED)
def test_a_shortened_packet_never_breaks_the_decoder(entry: Entry, version: int) -> None:
    """A packet that was cut, with a length to match, is a packet or an error of the peer's."""
    body = entry.data[entry.body :]
    for size in range(len(body)):
        receive_anything(entry.data[:1] + write_varint(size) + body[:size], version)


@pytest.mark.parametrize(("entry", "version"), EVERY)
def test_a_flipped_bit_never_breaks_the_decoder(entry: Entry, version: int) -> None:
    """Whatever single bit is wrong, the result is packets or an error of the peer's."""
    for index in range(len(entry.data)):
        for bit in range(8):
            flipped = bytearray(entry.data)
            flipped[index] ^= 1 << bit
            receive_anything(bytes(flipped), version)


@pytest.mark.parametrize(("entry", "version"), EVERY)
def test_a_packet_of_another_version_never_breaks_the_decoder(entry: Entry, version: int) -> None:
    """A packet in the wrong version's shape is a packet or an error of the peer's."""
    for other in {3, 4, 5} - {version}:
        receive_anything(entry.data, other)
