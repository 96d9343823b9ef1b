"""The data types packets are made of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.strategies import text
from kinmqtt.mqtt.codec.primitives import (
    Cursor,
    packet_of,
    text_of,
    write_binary,
    write_packet_id,
    write_u8,
    write_u16,
    write_u32,
    write_utf8,
    write_utf8_pair,
    write_varint,
)
from kinmqtt.mqtt.errors import LocalError, MalformedPacket


@pytest.mark.parametrize(
    ("value", "encoded"),
    [
        (0, "00"),
        (127, "7f"),
        (128, "8001"),
        (16_383, "ff7f"),
        (16_384, "808001"),
        (2_097_151, "ffff7f"),
        (2_097_152, "80808001"),
        (268_435_455, "ffffff7f"),
    ],
)
def test_variable_byte_integers(value: int, encoded: str) -> None:
    """The bounds of each length are those of section 1.5.5."""
    assert write_varint(value).hex() == encoded
    assert Cursor(bytes.fromhex(encoded), 0).varint() == value


@pytest.mark.parametrize("encoded", ["8000", "808000", "80808000", "8080808001", "ffffffff7f", "80", "ffff"])
def test_bad_variable_byte_integers(encoded: str) -> None:
    """A padded, endless or cut Variable Byte Integer is malformed (MQTT-1.5.5-1)."""
    with pytest.raises(MalformedPacket):
        Cursor(bytes.fromhex(encoded), 0).varint()


@given(st.integers(0, 268_435_455))
def test_variable_byte_integers_round_trip(value: int) -> None:
    """Any value that fits is read as it was written."""
    reader = Cursor(write_varint(value), 0)

    assert reader.varint() == value
    reader.finish()


@given(text, st.binary(max_size=20), st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF))
def test_fields_in_a_row(string: str, raw: bytes, short: int, long: int) -> None:
    """Fields that follow each other are read in their order."""
    data = write_utf8(string) + write_binary(raw) + write_u16(short) + write_u32(long) + write_u8(7)
    reader = Cursor(data, 0)

    assert (reader.utf8(), reader.binary()) == (string, raw)
    assert (reader.u16(), reader.u32(), reader.u8()) == (short, long, 7)
    reader.finish()


@given(text, text)
def test_string_pairs(name: str, value: str) -> None:
    """A pair is two strings (MQTT-1.5.7-1)."""
    assert Cursor(write_utf8_pair((name, value)), 0).utf8_pair() == (name, value)


@pytest.mark.parametrize("raw", ["00", "610062", "eda080", "edbfbf", "c080", "f4908080", "ff", "c3", "eda081edb080"])
def test_bad_strings(raw: str) -> None:
    """U+0000, surrogates, and whatever else is not UTF-8 is malformed (MQTT-1.5.4-1, MQTT-1.5.4-2)."""
    with pytest.raises(MalformedPacket):
        text_of(bytes.fromhex(raw))


def test_the_byte_order_mark_is_a_character() -> None:
    """U+FEFF is kept wherever it stands (MQTT-1.5.4-3)."""
    assert text_of(b"\xef\xbb\xbfa\xef\xbb\xbf") == "\ufeffa\ufeff"


def test_a_reader_keeps_to_its_end() -> None:
    """A field that would run past the end of its list is malformed, though the frame has more bytes."""
    reader = Cursor(b"\x00\x01\x02", 0, 1)

    with pytest.raises(MalformedPacket):
        reader.u16()


@pytest.mark.parametrize("value", ["\0", "a\0", "\ud800", "x" * 65_536])
def test_strings_that_cannot_be_sent(value: str) -> None:
    """A string that MQTT cannot carry is a fault of ours."""
    with pytest.raises(LocalError):
        write_utf8(value)


def test_numbers_that_cannot_be_sent() -> None:
    """A number that does not fit its field is a fault of ours."""
    for write, value in [(write_u8, 256), (write_u16, -1), (write_u32, 1 << 32), (write_varint, 1 << 28)]:
        with pytest.raises(LocalError):
            write(value)
    for packet_id in (0, 65_536, -1):
        with pytest.raises(LocalError):
            write_packet_id(packet_id)


def test_a_packet_is_its_parts_behind_a_header() -> None:
    """The Remaining Length counts all parts of the body."""
    assert packet_of(0x30, b"ab", b"c") == b"\x30\x03abc"
