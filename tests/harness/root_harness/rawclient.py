"""MQTT 5 packets written by hand, whole or not, and a connection that sends them: what attackers and bystanders use.

An attacker must be able to send what no encoder would, and to stop in the middle of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

CONNACK, PUBLISH, PUBACK, SUBACK, UNSUBACK = 2, 3, 4, 9, 11

WAIT_LIMIT_S = 20.0
"""How long an answer may take before whoever waits for it goes on without."""


def length_of(size: int) -> bytes:
    """A variable byte integer (section 1.5.5)."""
    encoded = bytearray()
    while True:
        size, byte = size >> 7, size & 0x7F
        encoded.append(byte | 0x80 if size else byte)
        if not size:
            return bytes(encoded)


def packet(first_byte: int, body: bytes) -> bytes:
    """A packet with its fixed header."""
    return bytes((first_byte,)) + length_of(len(body)) + body


def data(content: bytes) -> bytes:
    """Binary data, or a string in UTF-8, behind its length (section 1.5.6)."""
    return len(content).to_bytes(2, "big") + content


def user_properties(count: int) -> bytes:
    """So many empty user properties, behind their length: each takes five bytes."""
    properties = b"\x26\0\0\0\0" * count
    return length_of(len(properties)) + properties


def connect(
    client_id: str,
    *,
    expiry_s: int = 0,
    will: tuple[str, bytes] | None = None,
    will_properties: bytes = b"\0",
    username: str | None = None,
    password: bytes | None = None,
) -> bytes:
    """A CONNECT of MQTT 5 with Clean Start 0 where the session is to outlive its connection (section 3.1)."""
    flags = (0 if expiry_s else 2) | (0x04 if will else 0) | (0x80 if username else 0) | (0x40 if password else 0)
    properties = b"\x11" + expiry_s.to_bytes(4, "big") if expiry_s else b""
    body = data(b"MQTT") + bytes((5, flags)) + b"\0\0" + length_of(len(properties)) + properties
    body += data(client_id.encode())
    if will is not None:
        body += will_properties + data(will[0].encode()) + data(will[1])
    if username is not None:
        body += data(username.encode())
    if password is not None:
        body += data(password)
    return packet(0x10, body)


def publish(
    topic: str,
    payload: bytes = b"",
    *,
    qos: int = 0,
    packet_id: int = 1,
    retain: bool = False,
    properties: bytes = b"\0",
) -> bytes:
    """A PUBLISH (section 3.3)."""
    body = data(topic.encode()) + (packet_id.to_bytes(2, "big") if qos else b"") + properties + payload
    return packet(0x30 | qos << 1 | retain, body)


def subscribe(filters: Iterable[str], *, qos: int = 0, packet_id: int = 1) -> bytes:
    """A SUBSCRIBE (section 3.8)."""
    body = b"".join(data(filter.encode()) + bytes((qos,)) for filter in filters)
    return packet(0x82, packet_id.to_bytes(2, "big") + b"\0" + body)


def unsubscribe(filters: Iterable[str], *, packet_id: int = 1) -> bytes:
    """An UNSUBSCRIBE (section 3.10)."""
    body = b"".join(data(filter.encode()) for filter in filters)
    return packet(0xA2, packet_id.to_bytes(2, "big") + b"\0" + body)


class Client:
    """One connection to the broker, which may break the rules."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, port: int, first: bytes = b"", *, host: str | None = None) -> Client:
        """Open a connection, from the address ``host`` of the loopback network, and send the first bytes."""
        address = None if host is None else (host, 0)
        client = cls(*await asyncio.open_connection("127.0.0.1", port, local_addr=address, limit=1 << 16))
        if first:
            client.send(first)
        return client

    @classmethod
    async def accepted(cls, port: int, connect: bytes) -> Client | None:
        """A connection that has its CONNACK; ``None`` where the broker does not take it."""
        try:
            client = await cls.open(port, connect)
            answer = await client.answer(CONNACK)
        except OSError:
            return None
        if answer is None or answer[1]:
            client.abort()
            return None
        return client

    def send(self, packets: bytes) -> None:
        """Send, as far as the broker takes it; the rest waits here."""
        self._writer.write(packets)

    async def sent(self, limit_s: float = WAIT_LIMIT_S) -> bool:
        """Wait until little is left to send; ``False`` where the connection is gone, or the broker takes no more."""
        try:
            await asyncio.wait_for(self._writer.drain(), limit_s)
        except (OSError, TimeoutError):
            return False
        return not self._writer.is_closing() and not self._reader.at_eof()

    async def next_packet(self) -> tuple[int, bytes] | None:
        """The first byte and the body of the next packet; ``None`` where the connection has ended."""
        try:
            first = (await self._reader.readexactly(1))[0]
            length = shift = 0
            while True:
                byte = (await self._reader.readexactly(1))[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            return first, await self._reader.readexactly(length)
        except (OSError, asyncio.IncompleteReadError):
            return None

    async def answer(self, packet_type: int) -> bytes | None:
        """The body of the next packet of a type; ``None`` where none comes."""
        try:
            async with asyncio.timeout(WAIT_LIMIT_S):
                while (found := await self.next_packet()) is not None:
                    if found[0] >> 4 == packet_type:
                        return found[1]
        except TimeoutError:
            pass
        return None

    def stop_reading(self) -> None:
        """Read nothing any more, so that the socket fills up."""
        self._writer.transport.pause_reading()  # type: ignore[attr-defined]

    def abort(self) -> None:
        """Close at once."""
        self._writer.transport.abort()
