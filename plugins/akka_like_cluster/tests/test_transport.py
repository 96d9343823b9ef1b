"""Connections between brokers without TLS: data both ways, and how connections begin and end."""

from __future__ import annotations

import asyncio
import os
import socket
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from akka_harness.networks import LOOPS, Broker, Wire, close_all, run_on, until
from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.established import CLOSE_LIMIT_S, Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind, PeerInfo
from kinmqtt_akka_like_cluster.net.network_config import NetworkConfig
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.transport import Network, random_nonce
from kinmqtt_akka_like_cluster.settings import AkkaSettings
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock

pytestmark = pytest.mark.parametrize("loop", LOOPS)

LARGE = bytes(range(256)) * (24 << 10)
"""6 MiB: more than sockets buffer."""


def sockets_of_this_process() -> set[str]:
    """The inodes of its open sockets."""
    found = set()
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # That of the listing itself.
            found.add(os.readlink(descriptor))
    return {name for name in found if name.startswith("socket:")}


def test_two_brokers_talk_both_ways(loop: str) -> None:
    """Both know each other, the kind, and what both can do."""

    async def scenario() -> None:
        a, b = Broker("a", 1, features=3), await Broker("b", 2, features=6).listen()

        wire = await a.dial(b, ConnectionKind.BULK, expected_uid=2)
        await until(lambda: b.accepted)
        wire.connection.write(LARGE)
        b.accepted[0].connection.write(LARGE[::-1])
        await until(lambda: len(b.accepted[0].received) == len(wire.received) == len(LARGE))

        near, far = wire.connection, b.accepted[0].connection
        assert (near.peer, far.peer) == (b.network.own, a.network.own)
        assert (near.kind, far.kind) == (ConnectionKind.BULK, ConnectionKind.BULK)
        assert (near.version, near.features, far.features) == (1, 2, 2)
        assert (near.where, far.where) == (b.address, "127.0.0.1")
        assert b.accepted[0].received == LARGE and wire.received == LARGE[::-1]
        assert (a.network.connections, b.network.connections, b.network.half_open) == (1, 1, 0)
        await close_all(a, b)
        assert (a.network.connections, wire.losses, b.accepted[0].losses) == (0, 1, 1)

    run_on(loop, scenario())


def test_a_unix_socket_is_for_this_user_only(loop: str, tmp_path: Path) -> None:
    """Its file has no rights for others, and is removed at the end."""
    path = tmp_path / "a.sock"

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2, listen=Endpoint(path=str(path))).listen()

        wire = await a.dial(b)
        await until(lambda: b.accepted)
        wire.connection.write(b"x")
        await until(lambda: b.accepted[0].received == b"x")

        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert b.address == f"unix:{path}"
        assert b.accepted[0].connection.where == "a Unix socket"
        await close_all(a, b)
        assert not path.exists()

    run_on(loop, scenario())


def test_the_unix_socket_of_a_process_that_is_gone_is_replaced(loop: str, tmp_path: Path) -> None:
    """That of one that listens is not, nor is another file; a successor's is not removed."""
    path = tmp_path / "a.sock"

    async def scenario() -> None:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(path))
        first = await Broker("a", 1, listen=Endpoint(path=str(path))).listen()
        with pytest.raises(AssemblyError, match=r"listen: unix:/.*: another process listens there"):
            await Broker("b", 2, listen=Endpoint(path=str(path))).listen()
        path.rename(tmp_path / "moved")
        second = await Broker("b", 2, listen=Endpoint(path=str(path))).listen()
        await close_all(first)
        assert path.exists()
        await close_all(second)
        path.write_text("precious")
        with pytest.raises(AssemblyError, match="the file exists, and is no socket"):
            await Broker("b", 2, listen=Endpoint(path=str(path))).listen()
        assert path.read_text() == "precious"

    run_on(loop, scenario())


def test_an_address_in_use_is_named(loop: str) -> None:
    """With the key of the settings."""

    async def scenario() -> None:
        a = await Broker("a", 1).listen()

        with pytest.raises(AssemblyError, match=r"plugins.akka_like_cluster.listen: 127.0.0.1:\d+: .*in use"):
            await Broker("b", 2, listen=a.network.listening[0]).listen()

        await close_all(a)

    run_on(loop, scenario())


def test_without_tls_no_other_address_is_bound_or_dialled(loop: str) -> None:
    """Whatever the settings have let through: a member's address comes from outside."""

    async def scenario() -> None:
        a = Broker("a", 1, listen=Endpoint("0.0.0.0", 0))

        with pytest.raises(AssemblyError, match=r"0\.0\.0\.0 is no loopback address, and \[plugins"):
            await a.listen()
        with pytest.raises(DialFailed, match=r"192\.0\.2\.1:4883: is no loopback address"):
            await a.network.dial("192.0.2.1:4883", ConnectionKind.CONTROL)
        with pytest.raises(DialFailed, match="'nonsense' is not host:port"):
            await a.network.dial("nonsense", ConnectionKind.CONTROL)

        assert a.network.listening == []

    run_on(loop, scenario())


def test_a_broker_that_is_not_there_can_not_be_dialled(loop: str, tmp_path: Path) -> None:
    """TCP and Unix; the error has the address and the system's words."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()
        address = b.address
        await close_all(b)

        with pytest.raises(DialFailed, match=f"{address}: .*(refused|Connect call failed)"):
            await a.network.dial(address, ConnectionKind.CONTROL)
        with pytest.raises(DialFailed, match="No such file"):
            await a.network.dial(f"unix:{tmp_path}/none", ConnectionKind.CONTROL)

        assert a.network.refused == 0 and a.log.lines == []

    run_on(loop, scenario())


def test_what_comes_right_behind_the_handshake_is_not_lost(loop: str) -> None:
    """The acceptor writes at once and closes; the dialler sets its callbacks later. The end comes last."""

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)

        def greet(connection: Established) -> None:
            connection.write(b"first")
            connection.write(LARGE)
            connection.close()

        await b.network.start_listening(greet)
        connection = await a.network.dial(b.address, ConnectionKind.CONTROL)
        wire = Wire(connection)
        for _ in range(20):
            await asyncio.sleep(0)
        before = (bytes(wire.received), connection.ended)
        wire.attach()
        await until(lambda: wire.losses)

        assert before == (b"", False)
        assert wire.received == b"first" + LARGE
        assert (connection.ended, connection.reason) == (True, None)
        await close_all(a, b)
        assert wire.losses == 1

    run_on(loop, scenario())


def test_callbacks_are_not_called_from_within_the_owners_calls(loop: str) -> None:
    """A link must not be called by its own write."""

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)
        order: list[str] = []

        def take(connection: Established) -> None:
            connection.on_data = lambda data: order.append("data")
            connection.on_lost = lambda: order.append("lost")
            connection.write(b"x")
            order.append("taken")

        await b.network.start_listening(take)
        wire = await a.dial(b)
        wire.connection.write(b"x")
        await until(lambda: len(order) == 2)
        wire.connection.abort("enough")
        order.append("aborted")
        await until(lambda: wire.losses and len(order) == 4)

        assert order == ["taken", "data", "aborted", "lost"]
        assert wire.connection.reason == "enough"
        wire.connection.write(b"ignored")
        wire.connection.close()
        assert wire.connection.buffered_bytes == 0
        await close_all(a, b)

    run_on(loop, scenario())


def test_an_owner_that_fails_ends_its_connection_only(loop: str) -> None:
    """Nothing is raised into the event loop; the log has the trace."""

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)
        taken: list[Established] = []

        def fail(*_: object) -> None:
            raise RuntimeError("a mistake of the owner")

        def take(connection: Established) -> None:
            taken.append(connection)
            connection.on_data = connection.on_lost = fail
            if len(taken) == 1:
                fail()

        await b.network.start_listening(take)
        first = await a.dial(b)
        await until(lambda: first.losses)
        second = await a.dial(b)
        second.connection.write(b"x")
        await until(lambda: second.losses and b.network.connections == 0)

        texts = b.log.texts("error")
        assert len([text for text in texts if "RuntimeError: a mistake of the owner" in text]) == len(texts) == 4
        assert taken[1].reason == "its reader failed"
        assert b.network.listening
        await close_all(a, b)

    run_on(loop, scenario())


def test_close_sends_what_was_written(loop: str) -> None:
    """The other side gets all of it, then the end."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()
        wire = await a.dial(b)
        await until(lambda: b.accepted)

        wire.connection.write(LARGE)
        wire.connection.close()
        wire.connection.write(b"too late")
        await until(lambda: b.accepted[0].losses and wire.losses)

        assert b.accepted[0].received == LARGE
        assert (wire.losses, b.accepted[0].losses) == (1, 1)
        assert a.clock.pending() == 0
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_peer_that_does_not_read_can_not_hold_a_closed_connection(loop: str) -> None:
    """After 5 s it is ended, unsent bytes or not."""

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)
        await b.network.start_listening(lambda connection: None)  # Nobody reads.
        wire = await a.dial(b, ConnectionKind.BULK)
        for _ in range(5):
            wire.connection.write(LARGE)

        assert wire.connection.buffered_bytes > len(LARGE)
        wire.connection.close()
        a.clock.advance(CLOSE_LIMIT_S - 0.1)
        for _ in range(20):
            await asyncio.sleep(0)
        assert not wire.losses
        a.clock.advance(0.1)
        await until(lambda: wire.losses)

        assert a.network.connections == 0
        closing = asyncio.ensure_future(close_all(a, b))
        while not closing.done():
            b.clock.advance(1.0)
            await asyncio.sleep(0)

    run_on(loop, scenario())


def test_a_peer_that_does_not_read_can_not_hold_an_aborted_network(loop: str) -> None:
    """It ends at once, although a connection of it was closed already and has unsent bytes."""

    async def scenario() -> None:
        a, b = Broker("a", 1), Broker("b", 2)
        await b.network.start_listening(lambda connection: None)
        wires = [await a.dial(b, kind) for kind in ConnectionKind]
        for _ in range(5):
            wires[-1].connection.write(LARGE)
        wires[-1].connection.close()

        a.network.abort()
        await a.network.close()

        assert [wire.losses for wire in wires] == [1, 1]
        assert a.clock.pending() == 0
        await b.network.close()

    run_on(loop, scenario())


@pytest.mark.parametrize("kind", ConnectionKind)
def test_unsent_bytes_are_bounded(loop: str, kind: ConnectionKind) -> None:
    """A peer that does not read takes no memory beyond the limit of its kind."""
    limits = {ConnectionKind.CONTROL: 1 << 20, ConnectionKind.BULK: 8 << 20}

    async def scenario() -> None:
        a = Broker("a", 1, control_buffer_bytes=limits[kind.CONTROL], bulk_buffer_bytes=limits[kind.BULK])
        b = Broker("b", 2)
        await b.network.start_listening(lambda connection: None)
        wire = await a.dial(b, kind)

        most = 0
        for _ in range(200):
            wire.connection.write(LARGE[: 1 << 18])
            most = max(most, wire.connection.buffered_bytes)
        await until(lambda: wire.losses)

        assert limits[kind] < most <= limits[kind] + (1 << 18)
        assert "the other broker does not read" in (wire.connection.reason or "")
        await close_all(a, b)

    run_on(loop, scenario())


def test_small_writes_are_sent_at_once(loop: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Nagle's algorithm; a host that vanished is noticed by keepalive."""
    options: list[tuple[int, ...]] = []
    original = socket.socket.setsockopt

    def noted(self: socket.socket, *option: Any) -> None:
        original(self, *option)
        options.append(option)

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()
        monkeypatch.setattr(socket.socket, "setsockopt", noted)
        await a.dial(b)
        await until(lambda: b.accepted)
        monkeypatch.undo()
        await close_all(a, b)

    run_on(loop, scenario())

    assert options.count((socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)) >= 2
    assert options.count((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)) == 2
    assert options.count((socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)) == 2


def test_closing_ends_what_is_in_progress(loop: str) -> None:
    """A dial fails, a half-open connection is closed, and no descriptor is left."""

    async def scenario() -> None:
        before = sockets_of_this_process()
        a, b = Broker("a", 1), await Broker("b", 2).listen()
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            dialling = asyncio.ensure_future(a.network.dial(address, ConnectionKind.CONTROL))
            with socket.create_connection(("127.0.0.1", b.network.listening[0].port)) as raw:
                await until(lambda: b.network.half_open == 1)
                for _ in range(50):
                    await asyncio.sleep(0)

                await close_all(a, b)

                raw.setblocking(False)
                assert await asyncio.get_running_loop().sock_recv(raw, 1) == b""
        with pytest.raises(DialFailed, match="the network was closed"):
            await dialling
        with pytest.raises(DialFailed, match="the network was closed"):
            await a.network.dial(address, ConnectionKind.CONTROL)
        await until(lambda: sockets_of_this_process() == before)
        assert b.network.half_open == 0
        assert a.clock.pending() == b.clock.pending() == 0

    run_on(loop, scenario())


def test_a_cancelled_dial_leaves_nothing(loop: str) -> None:
    """At whatever moment its caller gives up."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()
        for turns in range(40):
            dialling = asyncio.ensure_future(a.network.dial(b.address, ConnectionKind.CONTROL))
            for _ in range(turns):
                await asyncio.sleep(0)
            dialling.cancel()
            try:
                (await dialling).abort()
            except asyncio.CancelledError:
                pass
        await until(lambda: not a.network.connections and not b.network.connections and not b.network.half_open)

        assert a.clock.pending() == 0
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_cookie_that_is_too_short_is_refused_at_once(loop: str) -> None:
    """Not with the first connection."""
    with pytest.raises(ValueError, match="the cookie has 5 bytes"):
        Broker("a", 1, cookie=b"short")


def test_a_config_is_made_of_the_settings(loop: str) -> None:
    """The representation does not show the cookie."""
    settings = AkkaSettings(listen="127.0.0.1:4883", cookie_file=Path("c"), link_bytes=32 << 20, cluster="green")

    config = NetworkConfig.of(settings, b"secret" * 8, None, features=1)

    assert (str(config.listen), config.cluster, config.features) == ("127.0.0.1:4883", "green", 1)
    assert config.bulk_buffer_bytes == 128 << 20
    assert "secret" not in repr(config)
    assert Network(config, PeerInfo("a", 1, "127.0.0.1:4883"), RecordingLog(), TurnableClock()).connections == 0
    assert random_nonce() != random_nonce() and len(random_nonce()) == 32
