#!/usr/bin/env python3
"""An HTTP server for ``webhooks.py`` that takes everything and counts lines, as cheap as it can be in Python.

It prints its port. ``GET`` returns the number of lines that have come.
"""

from __future__ import annotations

import asyncio
import re

LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)", re.IGNORECASE)


class Receiver(asyncio.Protocol):
    """One connection."""

    lines = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._head = b""
        self._left = 0

    def data_received(self, data: bytes) -> None:
        """Count, and answer each request."""
        while data:
            if not self._left:
                self._head += data
                head, end, data = self._head.partition(b"\r\n\r\n")
                if not end:
                    return
                self._head = b""
                length = LENGTH.search(head)
                self._left = 0 if length is None else int(length[1])
            part, data = data[: self._left], data[self._left :]
            self._left -= len(part)
            Receiver.lines += part.count(b"\n")
            if not self._left:
                count = b"%d" % Receiver.lines
                self._transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(count), count))


async def main() -> None:
    """Serve until killed."""
    server = await asyncio.get_running_loop().create_server(Receiver, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
