"""Stands between a bridge and its far broker: notes what each acknowledges to the other, and makes them fail."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from spi_harness.processes import free_port

CONNECT, PUBLISH, PUBACK, DISCONNECT = 1, 3, 4, 14

BRIDGE_BIT = 0x80
"""Set in the protocol version of CONNECT by bridges."""


class Observer:
    """A TCP proxy, in threads of its own."""

    def __init__(self, target: int) -> None:
        self.target = target
        """The port of the far broker."""
        self.port = free_port()
        self.taken: list[bytes] = []
        """The payloads that the far broker has acknowledged, noted before the bridge hears of it."""
        self.acknowledged: list[bytes] = []
        """The payloads that the bridge has acknowledged."""
        self.answers: dict[int, int] = {}
        """Reason codes of PUBACK that the far broker's are replaced by, by the number of the message, from 0."""
        self.connections = 0
        self.goodbyes = 0
        """How many DISCONNECT packets the bridge has sent."""
        self.answer_to_bridges: bytes | None = None
        """Sent to who sets the bit of bridges in CONNECT, before the connection is closed."""
        self._flows = threading.Event()
        self._flows.set()
        self._is_up = True
        self._sockets: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    @property
    def address(self) -> str:
        """Where it listens."""
        return f"127.0.0.1:{self.port}"

    def cut(self) -> None:
        """End all connections."""
        with self._lock:
            sockets, self._sockets = self._sockets, set()
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def down(self) -> None:
        """Be away from now on: end all connections, and each new one."""
        self._is_up = False
        self.cut()

    def up(self) -> None:
        """Be there again."""
        self._is_up = True

    def hang(self) -> None:
        """Let nothing through from now on."""
        self._flows.clear()

    def flow(self) -> None:
        """Let everything through again."""
        self._flows.set()

    def close(self) -> None:
        """End."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.flow()
        self.cut()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if not self._is_up:
                client.close()
                continue
            self.connections += 1
            try:
                server = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                client.close()
                continue
            for each in (client, server):
                with suppress(OSError):  # The bridge may be gone already.
                    each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets |= {client, server}
            self._begin(client, server)

    def _begin(self, client: socket.socket, server: socket.socket) -> None:
        sent: dict[int, bytes] = {}
        got: dict[int, bytes] = {}
        for source, target, published, acknowledged, noted in (
            (client, server, sent, got, self.acknowledged),
            (server, client, got, sent, self.taken),
        ):
            arguments = (source, target, published, acknowledged, noted)
            thread = threading.Thread(target=self._pass, args=arguments, daemon=True)
            self._threads.append(thread)
            thread.start()

    def _pass(
        self,
        source: socket.socket,
        target: socket.socket,
        published: dict[int, bytes],
        acknowledged: dict[int, bytes],
        noted: list[bytes],
    ) -> None:
        """Pass on whole packets. ``published`` is what this direction publishes, ``acknowledged`` the other's."""
        data = b""
        with suppress(OSError):
            while more := source.recv(1 << 16):
                data += more
                self._flows.wait()
                while (end := _end(data)) is not None:
                    packet, data = data[:end], data[end:]
                    kind = packet[0] >> 4
                    if kind == CONNECT:
                        version = packet[_body(packet) + 6]
                        published[-1] = acknowledged[-1] = bytes((version & ~BRIDGE_BIT,))
                        if self.answer_to_bridges is not None and version & BRIDGE_BIT:
                            source.sendall(self.answer_to_bridges)
                            raise ConnectionRefusedError
                    elif kind == PUBLISH and packet[0] & 0x06:
                        identifier, payload = _published(packet, published.get(-1, b"\x04")[0] == 5)
                        published[identifier] = payload
                    elif kind == PUBACK:
                        packet = self._note(packet, acknowledged, noted)
                    elif kind == DISCONNECT:
                        self.goodbyes += 1
                    target.sendall(packet)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        source.close()

    def _note(self, packet: bytes, acknowledged: dict[int, bytes], noted: list[bytes]) -> bytes:
        identifier = int.from_bytes(packet[2:4], "big")
        payload = acknowledged.pop(identifier, None)
        if payload is None:
            return packet
        if noted is self.taken and self.answers:
            reason = self.answers.pop(int(payload), None)
            if reason is not None:
                return b"\x40\x03" + packet[2:4] + bytes((reason,))
        noted.append(payload)
        return packet


def _body(packet: bytes) -> int:
    place = 1
    while packet[place] & 0x80:
        place += 1
    return place + 1


def _end(data: bytes) -> int | None:
    length = shift = 0
    for place in range(1, min(5, len(data))):
        length |= (data[place] & 0x7F) << shift
        shift += 7
        if data[place] < 0x80:
            end = place + 1 + length
            return end if end <= len(data) else None
    return None


def _published(packet: bytes, is_v5: bool) -> tuple[int, bytes]:
    place = _body(packet)
    place += 2 + int.from_bytes(packet[place : place + 2], "big")
    identifier = int.from_bytes(packet[place : place + 2], "big")
    place += 2
    if is_v5:
        length = shift = 0
        while True:
            byte = packet[place]
            place += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        place += length
    return identifier, packet[place:]


@contextmanager
def observed(target: int) -> Iterator[Observer]:
    """An observer, for as long as the block lasts."""
    observer = Observer(target)
    try:
        yield observer
    finally:
        observer.close()
