"""A cluster backend for two brokers on this machine, joined by one TCP connection: for the benchmark only.

It reads ``LINKED_PORT``, and ``LINKED_SIDE``: "listen" or "connect".
"""

from __future__ import annotations

import os
import struct
from collections.abc import Awaitable, Callable
from time import monotonic, time
from typing import Any

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP4ServerEndpoint, connectProtocol
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger

from kinmqtt_spi import hookimpl
from kinmqtt_spi.mesh.backend import MeshBackend
from kinmqtt_spi.mesh.connection import Connection
from kinmqtt_spi.services.cluster import ClusterBackend, ClusterListener, Member, MemberState
from kinmqtt_spi.values import Maybe, NodeIdentity

_HEAD = struct.Struct(">QB")


class ReactorClock:
    """The reactor's clock."""

    def now(self) -> float:
        """Seconds since the epoch."""
        return time()

    def monotonic(self) -> float:
        """Seconds of a clock that is never set."""
        return monotonic()

    def later(self, delay_s: float, call: Callable[[], object]) -> Any:
        """Make a call after a time."""
        return reactor.callLater(delay_s, call)


class DeferredResult:
    """A result that Twisted code awaits."""

    def __init__(self) -> None:
        self.awaitable: Deferred[Any] = Deferred()

    def set(self, value: Any) -> None:
        """Complete it."""
        if not self.awaitable.called:
            self.awaitable.callback(value)

    def fail(self, error: Exception) -> None:
        """Let it raise."""
        if not self.awaitable.called:
            self.awaitable.errback(error)


def drive(it: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
    """Call one of the two with an awaitable's outcome."""
    assert isinstance(it, Deferred)
    it.addCallbacks(done, lambda failure: failed(failure.value))


class Wire(Protocol):
    """One end of the connection: it says who it is, and then carries the link."""

    def __init__(self, backend: Linked, node: NodeIdentity, connects: bool) -> None:
        self._backend = backend
        self._node = node
        self._connects = connects
        self._early = b""
        self._link: Connection | None = None

    def connectionMade(self) -> None:
        """Say who this is."""
        name = self._node.name.encode()
        self.transport.write(_HEAD.pack(self._node.uid, len(name)) + name)  # type: ignore[union-attr]

    def dataReceived(self, data: bytes) -> None:
        """Take bytes of the link, after the other node's identity."""
        if self._link is None:
            data = self._early = self._early + data
            if len(data) < _HEAD.size or len(data) < _HEAD.size + data[_HEAD.size - 1]:
                return
            uid, length = _HEAD.unpack_from(data)
            end = _HEAD.size + length
            other = NodeIdentity(data[_HEAD.size : end].decode(), uid)
            self._backend.member(Member(other, MemberState.JOINING))
            backend = self._backend
            self._link = backend.connected(other, self) if self._connects else backend.accepted(self)
            data = data[end:]
        if data:
            self._link.feed(data)

    def connectionLost(self, reason: Any = None) -> None:
        """Tell the link."""
        if self._link is not None:
            self._link.lost()

    def write(self, data: bytes) -> None:
        """Send bytes."""
        self.transport.write(data)  # type: ignore[union-attr]

    def close(self) -> None:
        """Close the connection."""
        self.transport.loseConnection()  # type: ignore[union-attr]


class Linked(MeshBackend):
    """The backend of one of the two nodes."""

    @hookimpl
    def cluster_backend(self) -> ClusterBackend:
        """Serve as the cluster backend."""
        return self

    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        """Join the other node."""
        started = super().start(node, listener)
        port = int(os.environ["LINKED_PORT"])
        if os.environ["LINKED_SIDE"] == "listen":
            factory = Factory.forProtocol(lambda: Wire(self, node, False))
            TCP4ServerEndpoint(reactor, port, interface="127.0.0.1").listen(factory)
        else:
            connectProtocol(TCP4ClientEndpoint(reactor, "127.0.0.1", port), Wire(self, node, True))
        return started


plugin = Linked(ReactorClock(), Logger("linked"), drive, DeferredResult)
