"""A far broker that does what a test says, packet by packet, in the test's event loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

CONNECT, PUBLISH, PUBREC, PUBCOMP, SUBSCRIBE = 1, 3, 5, 7, 8

CONNACK = b"\x20\x03\x00\x00\x00"
"""Accepts a client of MQTT 5."""

CONNACK_3 = b"\x20\x02\x00\x00"
"""Accepts a client of MQTT 3.1.1."""


class Scripted:
    """Answers CONNECT; the test answers the rest."""

    def __init__(self, connack: bytes) -> None:
        self.connack = connack
        self.packets: list[bytes] = []
        """What has come, CONNECT included."""
        self.answer: Callable[[bytes], bytes] = lambda packet: b""
        """Returns what is sent for a packet."""
        self.address = ""
        self.reads = asyncio.Event()
        """Whether it reads; it does at first."""
        self.reads.set()
        self._writers: list[asyncio.StreamWriter] = []

    def of(self, kind: int) -> list[bytes]:
        """Return the packets of a kind that have come."""
        return [packet for packet in self.packets if packet[0] >> 4 == kind]

    def send(self, data: bytes) -> None:
        """Send over the newest connection."""
        self._writers[-1].write(data)

    def cut(self) -> None:
        """End all connections."""
        self.reads.set()
        for each in self._writers:
            each.close()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection."""
        self._writers.append(writer)
        with suppress(OSError, asyncio.IncompleteReadError):
            while True:
                await self.reads.wait()
                packet = await _packet(reader)
                self.packets.append(packet)
                writer.write(self.connack if packet[0] >> 4 == CONNECT else self.answer(packet))
        writer.close()


async def _packet(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(2)
    while head[-1] & 0x80:
        head += await reader.readexactly(1)
    length = sum((byte & 0x7F) << 7 * place for place, byte in enumerate(head[1:]))
    return head + await reader.readexactly(length)


@asynccontextmanager
async def scripted(connack: bytes = CONNACK) -> AsyncIterator[Scripted]:
    """A far broker, for as long as the block lasts."""
    broker = Scripted(connack)
    server = await asyncio.start_server(broker.serve, "127.0.0.1", 0)
    broker.address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        server.close()
        broker.cut()
