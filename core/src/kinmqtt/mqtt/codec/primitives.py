"""The data types of packets (MQTT 5.0 section 1.5): checked reading, and writing."""

from __future__ import annotations

from typing import Final

from kinmqtt.mqtt.errors import LocalError, MalformedPacket, ProtocolError

MAX_STRING_BYTES: Final = 65_535
MAX_VARINT: Final = 268_435_455


class Cursor:
    """A cursor over ``data[pos:end]``; raises :class:`MalformedPacket` instead of running past the end."""

    __slots__ = ("data", "end", "pos")

    def __init__(self, data: bytes, pos: int, end: int | None = None) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data) if end is None else end

    def take(self, size: int) -> bytes:
        """Read ``size`` bytes."""
        start = self.pos
        self.pos = start + size
        if self.pos > self.end:
            raise MalformedPacket("a field runs past the end of its packet or property list", "section 4.13.1")
        return self.data[start : self.pos]

    def u8(self) -> int:
        """One byte."""
        return self.take(1)[0]

    def u16(self) -> int:
        """A Two Byte Integer (section 1.5.2)."""
        return int.from_bytes(self.take(2), "big")

    def u32(self) -> int:
        """A Four Byte Integer (section 1.5.3)."""
        return int.from_bytes(self.take(4), "big")

    def varint(self) -> int:
        """A Variable Byte Integer in its shortest form (section 1.5.5)."""
        value = 0
        for shift in (0, 7, 14, 21):
            byte = self.u8()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise MalformedPacket("a Variable Byte Integer uses more bytes than it needs", "MQTT-1.5.5-1")
                return value
        raise MalformedPacket("a Variable Byte Integer takes more than four bytes", "section 1.5.5")

    def binary(self) -> bytes:
        """Binary Data (section 1.5.6)."""
        return self.take(self.u16())

    def utf8(self) -> str:
        """A UTF-8 Encoded String (section 1.5.4)."""
        return text_of(self.take(self.u16()))

    def utf8_pair(self) -> tuple[str, str]:
        """A UTF-8 String Pair (section 1.5.7)."""
        return self.utf8(), self.utf8()

    def packet_id(self) -> int:
        """A Packet Identifier, which is never 0 (section 2.2.1)."""
        return checked_packet_id(self.u16())

    def finish(self) -> None:
        """Raise an error if any bytes are left."""
        if self.pos != self.end:
            text = f"{self.end - self.pos} bytes are left over at the end of the packet"
            raise MalformedPacket(text, "section 4.13.1")


def text_of(raw: bytes) -> str:
    """Decode the bytes of a UTF-8 Encoded String.

    Python's decoder refuses surrogates and keeps U+FEFF, as required (MQTT-1.5.4-1, MQTT-1.5.4-3). Control
    characters and non-characters are accepted; the settings say whether names may contain them
    (:mod:`kinmqtt.mqtt.characters`).
    """
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise MalformedPacket("a string is not well-formed UTF-8", "MQTT-1.5.4-1") from None
    if "\0" in text:
        raise MalformedPacket("a string contains U+0000", "MQTT-1.5.4-2")
    return text


def checked_packet_id(packet_id: int) -> int:
    """Return ``packet_id``; raise an error if it is 0."""
    if not packet_id:
        raise ProtocolError("the Packet Identifier is 0", "MQTT-2.2.1-3")
    return packet_id


def write_u8(value: int) -> bytes:
    """One byte."""
    return _unsigned(value, 1)


def write_u16(value: int) -> bytes:
    """A Two Byte Integer."""
    return _unsigned(value, 2)


def write_u32(value: int) -> bytes:
    """A Four Byte Integer."""
    return _unsigned(value, 4)


def write_varint(value: int) -> bytes:
    """A Variable Byte Integer."""
    if 0 <= value < 0x80:
        return bytes((value,))
    if not 0 <= value <= MAX_VARINT:
        raise LocalError(f"{value} does not fit a Variable Byte Integer")
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def write_binary(value: bytes) -> bytes:
    """Binary Data."""
    if len(value) > MAX_STRING_BYTES:
        raise LocalError(f"a field of {len(value)} bytes; the maximum is {MAX_STRING_BYTES}")
    return len(value).to_bytes(2, "big") + value


def write_utf8(value: str) -> bytes:
    """A UTF-8 Encoded String."""
    try:
        raw = value.encode()
    except UnicodeEncodeError:
        raise LocalError("a string with a surrogate cannot be sent") from None
    if "\0" in value:
        raise LocalError("a string with U+0000 cannot be sent")
    return write_binary(raw)


def write_utf8_pair(value: tuple[str, str]) -> bytes:
    """A UTF-8 String Pair."""
    name, text = value
    return write_utf8(name) + write_utf8(text)


def write_packet_id(packet_id: int) -> bytes:
    """A Packet Identifier, which is never 0."""
    if not 0 < packet_id <= 0xFFFF:
        raise LocalError(f"{packet_id} is not a Packet Identifier")
    return packet_id.to_bytes(2, "big")


def packet_of(first_byte: int, *parts: bytes) -> bytes:
    """Return a complete packet: the fixed header and the parts of its body."""
    body = b"".join(parts)
    return bytes((first_byte,)) + write_varint(len(body)) + body


def _unsigned(value: int, size: int) -> bytes:
    try:
        return value.to_bytes(size, "big")
    except OverflowError:
        raise LocalError(f"{value} does not fit {size} bytes") from None
