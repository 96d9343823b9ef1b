"""A relay before a broker on loopback, by which a test stops and breaks the broker's connections."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable

PIECE_BYTES = 1 << 16


class Relay:
    """Passes on the connections that are made to :attr:`address`. It is used on one event loop of asyncio."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._target = 0
        self._going = asyncio.Event()
        self._going.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, target: int) -> None:
        """Listen, and pass on to a port of this machine."""
        self._target = target
        self._server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)

    @property
    def address(self) -> str:
        """Where others connect."""
        assert self._server is not None
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    def stall(self) -> Callable[[], None]:
        """Pass nothing on, in either direction; returns a call that goes on."""
        self._going.clear()
        return self._going.set

    def cut(self) -> None:
        """Break the connections, with all that is on its way."""
        for task in self._tasks:
            task.cancel()

    async def close(self) -> None:
        """Listen no more, and break all connections."""
        if self._server is not None:
            self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        writers = [writer]
        pumps: list[asyncio.Task[None]] = []
        try:
            there, other = await asyncio.open_connection("127.0.0.1", self._target)
            writers.append(other)
            pumps = [asyncio.create_task(self._pump(*way)) for way in ((reader, other), (there, writer))]
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        except (OSError, asyncio.CancelledError):
            pass  # Nobody listens there, or the connection was cut.
        finally:
            self._tasks.discard(task)
            for pump in pumps:
                pump.cancel()
            for each in writers:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(PIECE_BYTES):
                await self._going.wait()
                writer.write(data)
                await writer.drain()
            # What was written before arrives.
            writer.close()
            await writer.wait_closed()
        except OSError:
            pass  # One of the two sides has broken the connection.


def free_port() -> int:
    """Return a port of the loopback interface on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
