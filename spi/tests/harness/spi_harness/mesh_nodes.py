"""Links and nodes of a mesh, for tests."""

from __future__ import annotations

from typing import Any

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.mesh.link import Link, LinkLimits
from kinmqtt_spi.mesh.network import Network, NetworkNode
from kinmqtt_spi.mesh.pipes import Pipe, PipeEnd
from kinmqtt_spi.testing.cluster import News
from kinmqtt_spi.values import NodeIdentity


class Refused(Exception):
    """An owner's error about a frame."""


class Answered:
    """A token that collects what it gets."""

    def __init__(self) -> None:
        self.results: list[bytes | Exception] = []

    def set(self, value: bytes) -> None:
        self.results.append(value)

    def fail(self, error: Exception) -> None:
        self.results.append(error)


class LinkEnd:
    """One end of a link in memory, which collects what arrives."""

    def __init__(self, uid: int, peer_uid: int, clock: TurnableClock, limits: LinkLimits | None = None) -> None:
        self.link = Link(uid, peer_uid, self, clock, limits)
        self.batches: list[tuple[bytes, bool]] = []
        self.calls: list[bytes] = []
        self.owed: list[tuple[int, bytes]] = []
        """The sequences and bodies that are to be answered."""
        self.refusals = 0
        """How many of the next batches are refused as malformed."""
        self.errors: list[Exception] = []
        self.transport: PipeEnd | None = None

    def received(self, sequence: int, batch: bytes, assured: bool) -> None:
        if self.refusals:
            self.refusals -= 1
            raise Refused
        self.batches.append((batch, assured))
        if assured:
            self.owed.append((sequence, batch))

    def called(self, sequence: int, body: bytes) -> None:
        self.calls.append(body)
        self.owed.append((sequence, body))

    def attach(self, end: PipeEnd) -> None:
        """Use a connection."""
        self.transport = end
        self.link.connected(end)
        end.attach(lambda data: self.feed(end, data), lambda: self.lost(end))

    def feed(self, end: PipeEnd, data: bytes) -> None:
        if self.transport is not end:
            return
        try:
            self.link.feed(data)
        except (MalformedFrame, Refused) as error:
            self.errors.append(error)
            self.lost(end)
            end.close()

    def lost(self, end: PipeEnd) -> None:
        if self.transport is end:
            self.transport = None
            self.link.lost()

    def answer_all(self) -> None:
        """Answer all that is owed: with its own bytes, backwards."""
        while self.owed:
            sequence, body = self.owed.pop(0)
            if body.startswith(b"fail"):
                self.link.fail(sequence, ServiceUnavailable(body.decode()))
            else:
                self.link.answer(sequence, body[::-1])


def joined_ends(
    clock: TurnableClock, limits: LinkLimits | None = None, delay_s: float = 0.001
) -> tuple[LinkEnd, LinkEnd, Pipe]:
    """Return two ends that have said HELLO, and the pipe between them."""
    here, there = LinkEnd(1, 2, clock, limits), LinkEnd(2, 1, clock, limits)
    pipe = Pipe(clock, delay_s)
    here.attach(pipe.left)
    there.attach(pipe.right)
    clock.advance(1.0)
    return here, there, pipe


class Nodes:
    """Nodes of one network that are UP, with their listeners."""

    def __init__(self, *names: str, **options: Any) -> None:
        self.clock = TurnableClock()
        self.network = Network(self.clock)
        self.backends: list[NetworkNode] = []
        self.news: list[News] = []
        self.identities: list[NodeIdentity] = []
        self.logs: list[RecordingLog] = []
        self.options = options
        for name in names:
            self.add(name)

    def add(self, name: str, uid: int | None = None) -> NetworkNode:
        """Start one more node."""
        backend = NetworkNode(self.network, RecordingLog(), **self.options)
        identity = NodeIdentity(name, len(self.backends) + 1 if uid is None else uid)
        news = News()
        self.backends.append(backend)
        self.news.append(news)
        self.identities.append(identity)
        backend.start(identity, news)
        self.clock.advance(1.0)
        backend.up()
        self.clock.advance(1.0)
        return backend
