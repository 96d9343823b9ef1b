"""A connection after its handshake, over a transport of the test: nothing is lost, whenever the owner comes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock


class Pipe(asyncio.Transport):
    """A transport that notes what is asked of it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []
        self.written = b""

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def close(self) -> None:
        self.calls.append("close")

    def abort(self) -> None:
        self.calls.append("abort")


class Bench:
    """A connection, its pipe, and what its owner has seen in order."""

    def __init__(self, early: bytes = b"") -> None:
        self.pipe = Pipe()
        self.log = RecordingLog()
        self.seen: list[bytes | str] = []
        self.connection = Established(
            self.pipe,
            PeerInfo("b", 2, "127.0.0.1:2"),
            ConnectionKind.BULK,
            "127.0.0.1",
            early,
            version=1,
            features=0,
            log=self.log,
            clock=TurnableClock(),
            buffer_bytes=100,
        )

    def own(self) -> None:
        """Become the owner."""
        self.connection.on_data = self.seen.append
        self.connection.on_lost = lambda: self.seen.append("lost")

    def data(self) -> bytes:
        """What the owner has got."""
        return b"".join(each for each in self.seen if isinstance(each, bytes))


def run(scenario: Coroutine[Any, Any, None]) -> None:
    """Run on an event loop."""
    asyncio.run(scenario)


async def turns(number: int = 3) -> None:
    """Let the event loop make calls that are due."""
    for _ in range(number):
        await asyncio.sleep(0)


def test_nothing_is_read_before_the_owner_comes() -> None:
    """What came with the handshake waits, and is bounded by one read."""

    async def scenario() -> None:
        bench = Bench(b"early")
        await turns()
        assert bench.pipe.calls == ["pause"]

        bench.own()
        assert bench.seen == []
        await turns()

        assert bench.seen == [b"early"]
        assert bench.pipe.calls == ["pause", "resume"]

    run(scenario())


@given(st.lists(st.sampled_from(["data", "own", "turn", "lost"]), max_size=12), st.binary(max_size=3))
def test_whatever_comes_first_the_owner_sees_all_in_order(steps: list[str], early: bytes) -> None:
    """All data, then the end, once."""

    async def scenario() -> None:
        bench = Bench(early)
        sent, ended = early, False
        for number, step in enumerate(steps):
            if step == "data" and not ended:
                sent += bytes([number])
                bench.connection.received(bytes([number]))
            elif step == "own" and bench.connection.on_data is None:
                bench.own()
            elif step == "turn":
                await turns(1)
            elif step == "lost" and not ended:
                ended = True
                bench.connection.lost(None)
        if bench.connection.on_data is None:
            bench.own()
        await turns()

        assert bench.data() == sent
        assert bench.seen.count("lost") == int(ended)
        assert not ended or bench.seen[-1] == "lost"

    run(scenario())


@pytest.mark.parametrize("comes", ["before", "after"])
def test_an_owner_may_only_watch_for_the_end(comes: str) -> None:
    """Without a reader nothing is read; the end is reported nevertheless, and if it has come already."""

    async def scenario() -> None:
        bench = Bench()
        if comes == "before":
            bench.connection.on_lost = lambda: bench.seen.append("lost")

        bench.connection.lost("reset")
        if comes == "after":
            bench.connection.on_lost = lambda: bench.seen.append("lost")
        await turns()

        assert bench.seen == ["lost"]
        assert bench.connection.reason == "reset"

    run(scenario())


def test_a_closed_connection_is_read_no_more() -> None:
    """The transport may still have a piece."""

    async def scenario() -> None:
        bench = Bench()
        bench.own()
        await turns()

        bench.connection.close()
        bench.connection.received(b"late")

        assert bench.seen == []

    run(scenario())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_a_connection_that_the_owner_has_ended_brings_nothing_more(how: str) -> None:
    """Also not what waited already."""

    async def scenario() -> None:
        bench = Bench(b"early")
        bench.own()

        getattr(bench.connection, how)()
        bench.connection.received(b"late")
        await turns()
        bench.connection.lost(None)
        bench.connection.write(b"ignored")
        getattr(bench.connection, how)()

        assert bench.seen == ["lost"]
        assert bench.pipe.calls == ["pause", how]
        assert bench.pipe.written == b""

    run(scenario())


def test_a_reader_that_ends_the_connection_gets_no_more() -> None:
    """What waited behind the piece that it did not like is dropped."""

    async def scenario() -> None:
        bench = Bench(b"first")
        bench.connection.received(b"second")

        def read(data: bytes) -> None:
            bench.seen.append(data)
            bench.connection.abort("malformed")

        bench.connection.on_data = read
        await turns()

        assert bench.seen == [b"first"]
        assert bench.connection.reason == "malformed"
        assert bench.pipe.calls == ["pause", "abort"]

    run(scenario())


def test_the_first_reason_counts() -> None:
    """What follows an abort is its consequence."""

    async def scenario() -> None:
        bench = Bench()

        bench.connection.abort("the first")
        bench.connection.lost("Connection reset by peer")

        assert bench.connection.reason == "the first"

    run(scenario())


def test_unsent_bytes_are_counted_until_the_end() -> None:
    """Above the limit the connection is ended rather than grow."""

    async def scenario() -> None:
        bench = Bench()

        bench.connection.write(bytes(101))
        assert bench.connection.buffered_bytes == 101 and bench.pipe.calls == ["pause"]
        bench.connection.write(b"x")

        assert bench.pipe.calls == ["pause", "abort"]
        assert len(bench.pipe.written) == 101
        bench.connection.lost(None)
        assert bench.connection.buffered_bytes == 0

    run(scenario())
