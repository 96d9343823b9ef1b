"""Transports of a test's own making, for protocols without a socket, and the bytes of the simplest packets."""

from __future__ import annotations

from typing import Any

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionLost

from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V311, Connect

CONNECT = encode(
    Connect(version=V311, client_id="c", clean_start=True, keep_alive=0, will=None, username=None, password=None),
    V311,
)
CONNACK = b"\x20\x02\x00\x00"
PING = b"\xc0\x00"
PONG = b"\xd0\x00"


class Socket:
    """Something with a file descriptor."""

    def fileno(self) -> int:
        """Not a real one."""
        return -1


class BufferTransport:
    """A transport that can't send at once, as TLS is; it notes down what is asked of it."""

    peer: Any = IPv4Address("TCP", "192.0.2.7", 4711)

    def __init__(self) -> None:
        self.written = b""
        self.calls: list[str] = []

    def getPeer(self) -> Any:
        return self.peer

    def write(self, data: bytes) -> None:
        self.written += data

    def registerProducer(self, producer: Any, streaming: bool) -> None:
        self.calls.append("push producer" if streaming else "pull producer")

    def unregisterProducer(self) -> None:
        self.calls.append("no producer")

    def pauseProducing(self) -> None:
        self.calls.append("pause")

    def resumeProducing(self) -> None:
        self.calls.append("resume")

    def loseConnection(self) -> None:
        self.calls.append("close")

    def abortConnection(self) -> None:
        self.calls.append("abort")


class HalfClosingTransport(BufferTransport):
    """A transport that can end what it sends and read on."""

    def loseWriteConnection(self) -> None:
        self.calls.append("end")


class EncryptingTransport(BufferTransport):
    """A transport that speaks TLS."""

    def getPeerCertificate(self) -> None:
        """Nobody has shown one."""


class SocketTransport(BufferTransport):
    """A transport over a socket that takes ``room`` bytes at once, at most ``step`` of them in one call."""

    def __init__(self, room: int = 1 << 30, step: int = 1 << 30) -> None:
        super().__init__()
        self.room = room
        self.step = step
        self.sent = b""

    def getHandle(self) -> Socket:
        return Socket()

    def setTcpNoDelay(self, on: bool) -> None:
        self.calls.append(f"no delay: {on}")

    def writeSomeData(self, data: bytes) -> int | Exception:
        if self.room < 0:
            return ConnectionLost()
        taken = data[: min(self.room, self.step)]
        self.sent += taken
        self.room -= len(taken)
        return len(taken)
