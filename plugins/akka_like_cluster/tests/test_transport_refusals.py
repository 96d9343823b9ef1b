"""Connections that are refused, and those that never prove who they are: bounded in time and number."""

from __future__ import annotations

import asyncio
import errno
import socket
from typing import Any

import pytest

from akka_harness.networks import LOOPS, Broker, close_all, run_on, until
from kinmqtt_akka_like_cluster.net.acceptor import ACCEPT_PAUSE_S
from kinmqtt_akka_like_cluster.net.framing import encode
from kinmqtt_akka_like_cluster.net.handshake import HELLO
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, Hello, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import HANDSHAKE_LIMIT_S
from kinmqtt_akka_like_cluster.net.opening import MAX_DISCARDED_BYTES, DialFailed
from kinmqtt_akka_like_cluster.net.refusal import LOG_EVERY_S, HandshakeRefused, Refusal

pytestmark = pytest.mark.parametrize("loop", LOOPS)


class Raw:
    """A connection that says what a test wants."""

    def __init__(self, connected: socket.socket) -> None:
        self.socket = connected

    @classmethod
    async def to(cls, broker: Broker) -> Raw:
        """Connect to a broker."""
        made = socket.socket()
        made.setblocking(False)
        await asyncio.get_running_loop().sock_connect(made, ("127.0.0.1", broker.network.listening[0].port))
        return cls(made)

    async def send(self, data: bytes) -> None:
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self.socket, data)

    async def rest(self) -> bytes:
        """Return what comes until the end, and close."""
        data = b""
        try:
            while piece := await asyncio.get_running_loop().sock_recv(self.socket, 4096):
                data += piece
        except ConnectionResetError:
            pass
        self.socket.close()
        return data


def hello_of(cluster: str = "test") -> bytes:
    """A HELLO of a process without the cookie."""
    sender = PeerInfo("x", 9, "127.0.0.1:9")
    return encode(HELLO, 0, Hello((1, 1), ConnectionKind.CONTROL, cluster, sender, 0, b"d" * 32, b"n" * 32).pack())


async def refused(a: Broker, b: Broker, **more: Any) -> HandshakeRefused:
    """How a dial is refused; the acceptor has seen that, too."""
    with pytest.raises(HandshakeRefused) as error:
        await a.dial(b, **more)
    await until(lambda: not b.network.half_open)
    assert not b.accepted and not b.network.connections
    return error.value


@pytest.mark.parametrize(
    ("changes", "refusal", "words"),
    [
        ({"cookie": b"other" * 8}, Refusal.NOT_AUTHENTICATED, "not authenticated; the cookies differ (cookie_file)"),
        ({"cluster": "blue"}, Refusal.CLUSTER, "the names of the cluster differ: 'test' of 'b', 'blue' of 'a'"),
        ({"digest": b"e" * 32}, Refusal.SETTINGS, "the settings differ: downing, quorum or stable_after_s"),
        (
            {"versions": (2, 3)},
            Refusal.VERSION,
            "the protocol's versions differ: 1 to 1 of 'b', 2 to 3 of the other broker",
        ),
    ],
)
def test_both_logs_say_why_a_broker_does_not_fit(
    loop: str, changes: dict[str, Any], refusal: Refusal, words: str
) -> None:
    """Each names the other side; the counters name the reason."""

    async def scenario() -> None:
        a, b = Broker("a", 1, **changes), await Broker("b", 2).listen()

        error = await refused(a, b)

        assert error.refusal is refusal and error.by_peer
        claimed = "" if refusal is Refusal.VERSION else ", which calls itself 'a'"
        assert b.log.texts("warn")[0].startswith(f"refused 127.0.0.1{claimed}: {words}")
        assert b.address in a.log.texts("warn")[0] and words in a.log.texts("warn")[0]
        assert a.network.refusals == b.network.refusals == {refusal: 1}
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_refusal_is_logged_once_a_minute(loop: str) -> None:
    """However often the other broker tries."""

    async def scenario() -> None:
        a, b = Broker("a", 1, cookie=b"other" * 8), await Broker("b", 2).listen()

        for _ in range(5):
            await refused(a, b)
        assert (len(a.log.lines), len(b.log.lines)) == (1, 1)
        b.clock.advance(LOG_EVERY_S)
        await refused(a, b)

        assert "(4 more since the last such line)" in b.log.texts()[1]
        assert (a.network.refused, b.network.refused) == (6, 6)
        await close_all(a, b)

    run_on(loop, scenario())


def test_another_process_than_the_expected_one_is_refused(loop: str) -> None:
    """The member's process has ended, and another has its address."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()

        error = await refused(a, b, expected_uid=3)

        assert error.refusal is Refusal.WRONG_PROCESS and not error.by_peer
        assert "0000000000000003 is expected" in b.log.texts("warn")[0]
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_broker_that_dials_itself_notices_it(loop: str) -> None:
    """It is among its seeds; that is nothing to log."""

    async def scenario() -> None:
        a = await Broker("a", 1).listen()

        error = await refused(a, a)

        assert error.refusal is Refusal.SELF
        assert a.network.refused == 0 and a.log.texts("warn") == []
        await close_all(a)

    run_on(loop, scenario())


@pytest.mark.parametrize(
    ("noise", "words"),
    [
        (b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", "it is HTTP, and this is the port for other brokers"),
        (b"\x10\x10\x00\x04MQTT\x04\x02\x00<\x00\x04abcd", "it is MQTT, and this is the port for other brokers"),
        (b"\xff" * 10_000, "above 1024"),
    ],
)
def test_noise_ends_at_its_first_header(loop: str, noise: bytes, words: str) -> None:
    """It gets no answer, and needs no time limit."""

    async def scenario() -> None:
        b = await Broker("b", 2).listen()

        raw = await Raw.to(b)
        await raw.send(noise)

        assert await raw.rest() == b""
        await until(lambda: not b.network.half_open)
        assert b.network.refusals == {Refusal.MALFORMED: 1}
        assert words in b.log.texts("warn")[0]
        await close_all(b)

    run_on(loop, scenario())


def test_a_connection_that_is_just_closed_is_not_refused(loop: str) -> None:
    """Health checks connect each second."""

    async def scenario() -> None:
        b = await Broker("b", 2).listen()

        for data in (b"", hello_of()[:20], hello_of()):
            raw = await Raw.to(b)
            await raw.send(data)
            raw.socket.close()
            await until(lambda: b.log.texts("debug"))
            await until(lambda: not b.network.half_open)
            b.log.lines.remove(b.log.lines[0])

        assert b.network.refused == 0 and b.log.lines == []
        await close_all(b)

    run_on(loop, scenario())


@pytest.mark.parametrize("data", [b"", hello_of()[:30], hello_of()])
def test_a_handshake_that_takes_too_long_is_ended(loop: str, data: bytes) -> None:
    """After 5 s, whatever has come until then."""

    async def scenario() -> None:
        b = await Broker("b", 2).listen()
        raw = await Raw.to(b)
        await until(lambda: b.network.half_open == 1)

        for byte in data:
            await raw.send(bytes([byte]))
            b.clock.advance((HANDSHAKE_LIMIT_S - 0.1) / len(data))
        await asyncio.sleep(0)
        assert b.network.half_open == 1
        b.clock.advance(HANDSHAKE_LIMIT_S)
        await raw.rest()
        await until(lambda: not b.network.half_open)

        assert b.network.refusals == {Refusal.TIMEOUT: 1}
        assert "the handshake was not done within 5 s" in b.log.texts("warn")[0]
        assert b.clock.pending() == 0
        await close_all(b)

    run_on(loop, scenario())


def test_a_dial_that_takes_too_long_fails(loop: str) -> None:
    """A host that accepts and says nothing; nothing was refused."""

    async def scenario() -> None:
        a = Broker("a", 1)
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            dialling = asyncio.ensure_future(a.network.dial(address, ConnectionKind.CONTROL))
            await until(lambda: a.clock.pending() == 1)

            a.clock.advance(HANDSHAKE_LIMIT_S)

            with pytest.raises(DialFailed, match=f"{address}: the handshake was not done within 5 s"):
                await dialling
        assert a.network.refused == 0
        await close_all(a)

    run_on(loop, scenario())


def test_a_refused_peer_can_not_stay(loop: str) -> None:
    """It may read why, for 5 s; and it may not send on."""

    async def scenario() -> None:
        b = await Broker("b", 2).listen()
        patient, talkative = await Raw.to(b), await Raw.to(b)
        answers = []
        for raw in (patient, talkative):
            await raw.send(hello_of("blue"))
            answers.append(await asyncio.get_running_loop().sock_recv(raw.socket, 4096))
        assert b.network.half_open == 2

        await talkative.send(bytes(MAX_DISCARDED_BYTES + 1))
        await until(lambda: b.network.half_open == 1)
        b.clock.advance(HANDSHAKE_LIMIT_S)
        await until(lambda: b.network.half_open == 0)

        assert all(b"names of the cluster differ" in answer for answer in answers)
        assert b.network.refusals == {Refusal.CLUSTER: 2}
        for raw in (patient, talkative):
            raw.socket.close()
        await close_all(b)

    run_on(loop, scenario())


def test_connections_that_say_nothing_make_way_for_others(loop: str) -> None:
    """They keep no broker away, however many they are; the log says that once."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2, max_half_open=3).listen()
        silent = [await Raw.to(b) for _ in range(7)]
        await until(lambda: b.network.refused == 4)
        assert b.network.half_open == 3

        assert (await a.dial(b)).connection.peer.name == "b"
        await until(lambda: b.network.half_open == 2)
        assert b.network.refusals == {Refusal.TIMEOUT: 5}
        texts = [text for text in b.log.texts("warn") if "make way" in text]
        assert texts == ["3 connections have not proved who they are, 0 have: the oldest of the former make way"]
        for raw in silent:
            raw.socket.close()
        await close_all(a, b)

    run_on(loop, scenario())


def test_established_connections_are_bounded(loop: str) -> None:
    """A member that dials again and again fills nothing."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2, max_connections=2).listen()
        wires = [await a.dial(b) for _ in range(2)]
        dialling = asyncio.ensure_future(a.dial(b))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not dialling.done()

        wires[0].connection.close()

        assert (await dialling).connection.peer.name == "b"
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_system_that_can_not_accept_is_asked_again(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a pause, and with one line in the log."""
    failures = 2

    class Reluctant:
        """The event loop, out of file descriptors."""

        def __init__(self, real: asyncio.AbstractEventLoop) -> None:
            self._real = real

        def __getattr__(self, name: str) -> Any:
            return getattr(self._real, name)

        async def sock_accept(self, listener: socket.socket) -> Any:
            nonlocal failures
            if failures:
                failures -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return await self._real.sock_accept(listener)

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)
        real = asyncio.get_running_loop()
        monkeypatch.setattr(
            "kinmqtt_akka_like_cluster.net.acceptor.asyncio.get_running_loop", lambda: Reluctant(real)
        )
        await b.listen()
        await until(lambda: failures == 1)
        monkeypatch.undo()

        await until(lambda: b.clock.pending() == 1)
        b.clock.advance(ACCEPT_PAUSE_S)
        await until(lambda: failures == 0 and b.clock.pending() == 1)
        b.clock.advance(ACCEPT_PAUSE_S)

        assert (await a.dial(b)).connection.peer.name == "b"
        assert b.log.texts("error") == ["can't accept connections of other brokers: Too many open files"]
        await close_all(a, b)

    run_on(loop, scenario())
