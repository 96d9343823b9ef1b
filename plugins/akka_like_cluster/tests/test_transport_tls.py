"""Connections between brokers with TLS: who is let in, and what both logs say of the others."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path

import pytest

from akka_harness.certificates import Authority
from akka_harness.networks import LOOPS, Broker, close_all, run_on, until
from kinmqtt_akka_like_cluster.net.addresses import Endpoint
from kinmqtt_akka_like_cluster.net.established import Established
from kinmqtt_akka_like_cluster.net.hello import ConnectionKind
from kinmqtt_akka_like_cluster.net.opening import DialFailed
from kinmqtt_akka_like_cluster.net.refusal import HandshakeRefused, Refusal
from kinmqtt_akka_like_cluster.net.tls import Tls, load_tls

pytestmark = pytest.mark.parametrize("loop", LOOPS)

LARGE = bytes(range(256)) * (16 << 10)
"""4 MiB."""

PEERS = ["*.brokers.example"]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    """The authority of the brokers."""
    return Authority(tmp_path)


@pytest.fixture
def stranger(tmp_path: Path) -> Authority:
    """Another authority."""
    folder = tmp_path / "stranger"
    folder.mkdir()
    return Authority(folder, "stranger")


def tls_of(authority: Authority, name: str, **more: object) -> Tls:
    """TLS with a new certificate for a name."""
    return load_tls(authority.settings(name, **{"peers": PEERS, **more}))  # type: ignore[arg-type]


async def refused(a: Broker, b: Broker) -> Exception:
    """How a dial fails; the acceptor has seen that, too."""
    with pytest.raises((HandshakeRefused, DialFailed)) as error:
        await a.dial(b)
    await until(lambda: not b.network.half_open)
    assert not b.accepted and not b.network.connections
    return error.value


def test_two_brokers_talk_both_ways(loop: str, authority: Authority) -> None:
    """Both kinds of connection; each side has shown a certificate."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()

        for number, kind in enumerate(ConnectionKind):
            wire = await a.dial(b, kind)
            await until(lambda number=number: len(b.accepted) == number + 1)  # type: ignore[misc]
            wire.connection.write(LARGE)
            b.accepted[-1].connection.write(LARGE[::-1])
            await until(lambda wire=wire: len(b.accepted[-1].received) == len(wire.received) == len(LARGE))  # type: ignore[misc]
            assert b.accepted[-1].received == LARGE and wire.received == LARGE[::-1]
            assert b.accepted[-1].connection.peer == a.network.own

        await close_all(a, b)
        assert a.log.texts("warn") == b.log.texts("warn") == []

    run_on(loop, scenario())


def test_what_comes_right_behind_the_handshake_is_not_lost(loop: str, authority: Authority) -> None:
    """Written by either side at once, and followed by the end."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = Broker("b", 2, tls=tls_of(authority, "b.brokers.example"))

        def greet(connection: Established) -> None:
            connection.write(LARGE)
            connection.close()

        await b.network.start_listening(greet)
        wire = await a.dial(b)
        await until(lambda: wire.losses)

        assert wire.received == LARGE
        await close_all(a, b)

    run_on(loop, scenario())


def test_tls_works_over_unix_sockets(loop: str, authority: Authority, tmp_path: Path) -> None:
    """Certificates are checked there as well."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        tls = tls_of(authority, "b.brokers.example")
        b = await Broker("b", 2, tls=tls, listen=Endpoint(path=str(tmp_path / "b.sock"))).listen()

        wire = await a.dial(b)
        wire.connection.write(b"x")
        await until(lambda: b.accepted and b.accepted[0].received == b"x")

        await close_all(a, b)

    run_on(loop, scenario())


def test_a_dialler_of_another_authority_is_refused(loop: str, authority: Authority, stranger: Authority) -> None:
    """It trusts this one, and shows a certificate that nobody here trusts."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(stranger, "a.brokers.example", ca=authority.file))
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()

        await refused(a, b)

        assert b.network.refusals == {Refusal.TLS: 1}
        assert "refused 127.0.0.1: its certificate is not accepted" in b.log.texts("warn")[0]
        await close_all(a, b)

    run_on(loop, scenario())


def test_an_acceptor_of_another_authority_is_refused(loop: str, authority: Authority, stranger: Authority) -> None:
    """The dialler sends nothing to it."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = await Broker("b", 2, tls=tls_of(stranger, "b.brokers.example")).listen()

        error = await refused(a, b)

        assert isinstance(error, HandshakeRefused) and error.refusal is Refusal.TLS
        assert f"refused {b.address}: its certificate is not accepted" in a.log.texts("warn")[0]
        assert not b.accepted
        await close_all(a, b)

    run_on(loop, scenario())


def test_an_expired_certificate_is_refused(loop: str, authority: Authority) -> None:
    """The log says so."""

    async def scenario() -> None:
        settings = authority.settings("b.brokers.example", peers=PEERS)
        authority.issue("b.brokers.example", days=-1)
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = await Broker("b", 2, tls=load_tls(settings)).listen()

        await refused(a, b)

        assert "certificate has expired" in a.log.texts("warn")[0]
        await close_all(a, b)

    run_on(loop, scenario())


@pytest.mark.parametrize("names", [["a.clients.example"], ["brokers.example"], ["x.a.brokers.example"], []])
def test_a_dialler_without_a_name_among_the_peers_is_refused(
    loop: str, authority: Authority, names: list[str]
) -> None:
    """The authority alone is not enough: it may sign certificates of clients. Both logs say why."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example", names=names))
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()

        error = await refused(a, b)

        assert isinstance(error, HandshakeRefused)
        assert error.refusal is Refusal.CERTIFICATE and error.by_peer
        words = f"the certificate is for {', '.join(names) or 'no name'}, which tls.peers does not name"
        assert b.log.texts("warn") == [f"refused 127.0.0.1: {words}"]
        assert a.log.texts("warn") == [f"{b.address} has refused this broker: {words}"]
        await close_all(a, b)

    run_on(loop, scenario())


def test_an_acceptor_without_a_name_among_the_peers_is_refused(loop: str, authority: Authority) -> None:
    """The dialler tells it neither who it is nor the cluster's name."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = await Broker("b", 2, tls=tls_of(authority, "b.clients.example")).listen()

        error = await refused(a, b)

        assert isinstance(error, HandshakeRefused)
        assert error.refusal is Refusal.CERTIFICATE and not error.by_peer
        assert "127.0.0.1 has refused this broker: the certificate is for b.clients.example" in b.log.texts("warn")[0]
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_dialler_without_certificate_is_refused(loop: str, authority: Authority) -> None:
    """Before it gets anything of the handshake."""

    async def scenario() -> None:
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()
        context = ssl.create_default_context(cafile=str(authority.file))

        received = b""
        try:
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", b.network.listening[0].port, ssl=context, server_hostname="b.brokers.example"
            )
            received = await reader.read()
            writer.close()
            await writer.wait_closed()
        except (ssl.SSLError, ConnectionError):
            pass
        await until(lambda: b.network.refused)

        assert received == b""
        assert b.log.texts("warn") == [
            "refused 127.0.0.1: it has shown no certificate (peer did not return a certificate)"
        ]
        await close_all(b)

    run_on(loop, scenario())


def test_an_older_version_of_tls_is_refused(loop: str, authority: Authority) -> None:
    """TLS 1.2 is for clients."""

    async def scenario() -> None:
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()
        tls = tls_of(authority, "a.brokers.example")
        tls.client.minimum_version = ssl.TLSVersion.TLSv1_2
        tls.client.maximum_version = ssl.TLSVersion.TLSv1_2
        a = Broker("a", 1, tls=tls)

        error = await refused(a, b)

        assert "in the TLS handshake" in str(error)
        assert "it does not speak TLS 1.3" in b.log.texts("warn")[0]
        await close_all(a, b)

    run_on(loop, scenario())


def test_a_dialler_without_tls_is_refused(loop: str, authority: Authority) -> None:
    """Each side has words for what the other one lacks."""

    async def scenario() -> None:
        a = Broker("a", 1)
        b = await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()

        error = await refused(a, b)

        assert "it does not speak TLS: perhaps it has no [plugins.akka_like_cluster.tls]" in b.log.texts("warn")[0]
        # The alert may come, or the end of the connection first.
        assert isinstance(error, DialFailed) or "this one has not" in str(error)
        await close_all(a, b)

    run_on(loop, scenario())


def test_an_acceptor_without_tls_is_refused(loop: str, authority: Authority) -> None:
    """The other way round."""

    async def scenario() -> None:
        a = Broker("a", 1, tls=tls_of(authority, "a.brokers.example"))
        b = await Broker("b", 2).listen()

        error = await refused(a, b)

        assert "it is TLS, and this node has no [plugins.akka_like_cluster.tls]" in b.log.texts("warn")[0]
        assert isinstance(error, DialFailed)
        assert "in the TLS handshake; perhaps it has no [plugins.akka_like_cluster.tls]" in str(error)
        await close_all(a, b)

    run_on(loop, scenario())


def test_new_certificates_are_used_for_new_connections(loop: str, authority: Authority, stranger: Authority) -> None:
    """Established ones stay; the old authority is no longer trusted."""

    async def scenario() -> None:
        old = tls_of(authority, "a.brokers.example")
        a, b = Broker("a", 1, tls=old), await Broker("b", 2, tls=tls_of(authority, "b.brokers.example")).listen()
        first = await a.dial(b)

        b.network.use_tls(tls_of(stranger, "b.brokers.example"))
        with pytest.raises((HandshakeRefused, DialFailed)):
            await a.dial(b)
        a.network.use_tls(tls_of(stranger, "a.brokers.example"))
        second = await a.dial(b)
        await until(lambda: len(b.accepted) == 2)
        for wire in (first, second):
            wire.connection.write(b"x")
        await until(lambda: [bytes(wire.received) for wire in b.accepted] == [b"x", b"x"])

        await close_all(a, b)

    run_on(loop, scenario())


def test_a_network_without_tls_stays_without(loop: str, authority: Authority) -> None:
    """It listens where nobody else comes; a restart changes that."""

    async def scenario() -> None:
        a, b = Broker("a", 1), await Broker("b", 2).listen()

        b.network.use_tls(tls_of(authority, "b.brokers.example"))

        assert (await a.dial(b)).connection.peer.name == "b"
        await close_all(a, b)

    run_on(loop, scenario())
