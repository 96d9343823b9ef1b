"""A TCP proxy in front of one broker that makes the network bad: delay, loss, silence, and connections that are cut.

It is a program: ``cluster_proxy.py HOST:PORT TARGET_HOST:TARGET_PORT``. Lines on its standard input change what it
does, for the connections that are open too:

- ``delay 0.2``: each piece of data takes so many seconds, in each direction;
- ``loss 0.1``: a piece gets lost with this probability, and all behind it wait until TCP sends it again;
- ``stall``: nothing passes, and no connection ends;
- ``cut 7``: each connection ends when seven more bytes have passed it, in the middle of whatever they are;
- ``calm``: all is well again.

It ends with its standard input.
"""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Final

PIECE_BYTES: Final = 16_384
MAX_UNDER_WAY: Final = 256
"""Pieces of one direction that are under way; then nothing more is read."""
RESEND_S: Final = (0.2, 0.8)
"""How long TCP takes to send a lost segment again: its least timeout, and twice doubled (RFC 6298; Linux)."""


class Weather:
    """What happens to the data."""

    def __init__(self) -> None:
        self.chance = random.Random()
        self.delay_s = 0.0
        self.loss = 0.0
        self.flows = asyncio.Event()
        self.flows.set()
        self.connections: set[Connection] = set()

    def change(self, line: str) -> None:
        """Carry out a line of standard input."""
        match line.split():
            case ["delay", seconds]:
                self.delay_s = float(seconds)
            case ["loss", probability]:
                self.loss = float(probability)
            case ["stall"]:
                self.flows.clear()
            case ["cut", size]:
                for connection in self.connections:
                    connection.left_bytes = int(size)
            case ["calm"]:
                self.delay_s = self.loss = 0.0
                self.flows.set()
            case _:
                raise ValueError(f"unknown line {line!r}")

    def latency_s(self) -> float:
        """Return how long the next piece takes."""
        lost = self.loss and self.chance.random() < self.loss
        return self.delay_s + (self.chance.uniform(*RESEND_S) if lost else 0.0)


class EndOfConnection(Exception):
    """One end has closed, or the connection is to be cut."""


class Connection:
    """Both directions of one connection."""

    def __init__(self, weather: Weather) -> None:
        self.left_bytes: int | None = None
        """After so many bytes it is cut."""
        self._weather = weather
        self._writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, host: str, port: int) -> None:
        """Carry data in both directions until one end has closed."""
        self._writers.append(writer)
        self._weather.connections.add(self)
        try:
            to_reader, to_writer = await asyncio.open_connection(host, port)
            self._writers.append(to_writer)
            async with asyncio.TaskGroup() as ways:
                ways.create_task(self._carry(reader, to_writer))
                ways.create_task(self._carry(to_reader, writer))
        except* (OSError, EndOfConnection):
            pass  # Or the broker is not there: whoever connected sees the end.
        finally:
            self._weather.connections.discard(self)
            for each in self._writers:
                each.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one direction; raises EndOfConnection when it is over, which ends the other one too."""
        under_way: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(MAX_UNDER_WAY)
        async with asyncio.TaskGroup() as ends:
            ends.create_task(self._take(reader, under_way))
            ends.create_task(self._bring(writer, under_way))

    async def _take(self, reader: asyncio.StreamReader, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        now, arrives_s, data = asyncio.get_running_loop().time, 0.0, b"-"
        while data:
            data = await reader.read(PIECE_BYTES)
            arrives_s = max(arrives_s, now() + self._weather.latency_s())
            await under_way.put((arrives_s, data))

    async def _bring(self, writer: asyncio.StreamWriter, under_way: asyncio.Queue[tuple[float, bytes]]) -> None:
        now = asyncio.get_running_loop().time
        while self.left_bytes != 0:
            arrives_s, data = await under_way.get()
            if arrives_s > now():
                await asyncio.sleep(arrives_s - now())
            await self._weather.flows.wait()
            if not data:
                break
            if self.left_bytes is not None:
                data = data[: self.left_bytes]
                self.left_bytes -= len(data)
            writer.write(data)
            await writer.drain()
        raise EndOfConnection


async def main(listen: str, target: str) -> None:
    """Serve until the standard input ends."""
    weather = Weather()
    host, _, port = listen.rpartition(":")
    to_host, _, to_port = target.rpartition(":")

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await Connection(weather).serve(reader, writer, to_host, int(to_port))

    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    async with await asyncio.start_server(serve, host, int(port)):
        print("ready", flush=True)
        while line := await lines.readline():
            weather.change(line.decode())
            print("done", flush=True)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
