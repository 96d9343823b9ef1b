"""A client that blocks, for what the load generator does not do: sessions that move, and many subscriptions."""

from __future__ import annotations

import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Final

from brokers import Failed

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "harness"))
from root_harness.rawclient import connect, publish, subscribe

LIMIT_S: Final = 60.0
"""How long an answer may take."""
PAYLOAD: Final = bytes(64)
WINDOW: Final = 500
"""How many messages are sent before their acknowledgements are awaited."""
FILTERS: Final = 500
"""How many filters are in one SUBSCRIBE."""

_CONNACK, _PUBACK, _SUBACK = 0x20, 0x40, 0x90
_SESSION_PRESENT = 1


class Client:
    """One connection, which is accepted. Raises :class:`Failed` where the broker does not do its part."""

    def __init__(self, port: int, client_id: str, expiry_s: int = 0) -> None:
        """Connect; with an ``expiry_s`` the session is resumed and kept."""
        self._socket = socket.create_connection(("127.0.0.1", port), LIMIT_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._read = self._socket.makefile("rb")
        began = perf_counter()
        self._socket.sendall(connect(client_id, expiry_s=expiry_s))
        answer = self._answer(_CONNACK)
        self.connack_s = perf_counter() - began
        """The time from CONNECT to CONNACK."""
        if answer[1]:
            raise Failed(f"client {client_id} was refused: 0x{answer[1]:02X}")
        self.is_resumed = bool(answer[0] & _SESSION_PRESENT)
        """Whether the broker had the session."""

    def subscribe(self, filters: Sequence[str], qos: int = 0) -> None:
        """Subscribe to all of these."""
        for start in range(0, len(filters), FILTERS):
            self._socket.sendall(subscribe(filters[start : start + FILTERS], qos=qos))
            self._answer(_SUBACK)

    def publish(self, topic: str, count: int) -> None:
        """Publish so many messages with QoS 1, and wait until all are acknowledged."""
        for start in range(0, count, WINDOW):
            numbers = range(start, min(count, start + WINDOW))
            packets = [publish(topic, PAYLOAD, qos=1, packet_id=1 + number - start) for number in numbers]
            self._socket.sendall(b"".join(packets))
            for _ in numbers:
                self._answer(_PUBACK)

    def close(self) -> None:
        """Close the connection, without DISCONNECT."""
        self._read.close()
        self._socket.close()

    def _answer(self, wanted: int) -> bytes:
        """Return the body of the next packet of a type; others are ignored."""
        while True:
            first = self._read.read(1)
            if not first:
                raise Failed("the broker has closed a connection")
            body = self._read.read(self._length())
            if first[0] == wanted:
                return body

    def _length(self) -> int:
        length = shift = 0
        while True:
            byte = self._read.read(1)[0]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                return length
            shift += 7


def forget(port: int, client_id: str) -> None:
    """Remove the session of a client."""
    Client(port, client_id).close()
