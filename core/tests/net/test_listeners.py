"""Endpoint strings, and listeners opened all or none."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from typing import Any

import pytest
from attrs import define, field
from twisted.internet import tcp
from twisted.internet.defer import Deferred, succeed
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IProtocolFactory
from twisted.internet.protocol import Factory
from twisted.internet.testing import MemoryReactor

from core_harness.house import House
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.net.listeners import (
    ACCEPTED_AT_ONCE,
    BACKLOG,
    ListenerPort,
    accept_in_groups,
    close_all,
    describe,
    is_local,
    is_loopback,
    open_all,
    parse_listeners,
)
from kinmqtt.settings import ListenerSettings, from_text
from kinmqtt_spi.errors import AssemblyError
from spi_harness.processes import free_port

FULL = [
    ("1883", "tcp:1883"),
    ("0", "tcp:0"),
    ("127.0.0.1:1883", "tcp:1883:interface=127.0.0.1"),
    ("localhost:1883", "tcp:1883:interface=localhost"),
    ("[::1]:1883", r"tcp6:1883:interface=\:\:1"),
    ("[::]:1883", r"tcp6:1883:interface=\:\:"),
    ("tcp:1883", "tcp:1883"),
    ("tcp6:1883", "tcp6:1883"),
    ("tcp:1883:interface=127.0.0.1", "tcp:1883:interface=127.0.0.1"),
]


@pytest.mark.parametrize(("text", "full"), FULL)
def test_tcp_endpoints_are_written_out(text: str, full: str) -> None:
    """A port or host:port means plain TCP, and every TCP endpoint gets a long queue of connections to accept."""
    assert describe(text) == f"{full}:backlog={BACKLOG}"


@pytest.mark.parametrize(
    "text", ["unix:/run/mqtt.sock", "ssl:8883", "systemd:domain=INET:index=0", "tcp:1883:backlog=7", "systemd:3"]
)
def test_other_endpoints_stay_as_they_are(text: str) -> None:
    """What is a whole endpoint string already is not touched; the name of an endpoint's sort is no host's name."""
    assert describe(text) == text


LOCAL = ["127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1", "unix:/s", "tcp:1:interface=127.0.0.1"]
OPEN = ["1883", "tcp:1883", "0.0.0.0:1", "[::]:1", "192.0.2.1:1", "example.org:1", "tcp6:1", "systemd:3"]


@pytest.mark.parametrize("text", LOCAL)
def test_what_only_this_machine_reaches_is_local(text: str) -> None:
    """A listener on a loopback interface or a local socket is local."""
    assert is_local(describe(text))


@pytest.mark.parametrize("text", OPEN)
def test_what_others_may_reach_is_not_local(text: str) -> None:
    """A listener is not local where it is on another interface, on all of them, or where nobody can tell."""
    assert not is_local(describe(text))


@pytest.mark.parametrize("host", ["", "localhost.example.org", "127.0.0.1.example.org", "::", "::ffff:192.0.2.1"])
def test_a_host_that_is_not_loopback(host: str) -> None:
    """Only the loopback addresses and `localhost` count; a name that looks like them doesn't."""
    assert not is_loopback(host)


BAD = [
    ("", "Unknown endpoint type"),
    ("tcp:http-alt-nobody", "invalid literal"),
    ("tcp:70000", "65535"),
    ("70000", "65535"),
    ("tcp:port=70000", "65535"),
    ("tcp:1883:interfase=127.0.0.1", "interfase"),
    ("nothing:like:this", "Unknown endpoint type"),
    ("::1:1883", "Unknown endpoint type"),
    ("unix:", "path"),
    ("quic:1883", "Unknown endpoint type"),
    ("tpc:1883", "Unknown endpoint type"),
]


def listed(*texts: str) -> list[tuple[str, str, ListenerSettings]]:
    """Listeners as the settings list them."""
    return [(name, "k.toml:2: broker.listen", settings) for name, settings in map(from_text, texts)]


@pytest.mark.parametrize(("text", "why"), BAD)
def test_a_bad_endpoint_is_one_sentence(text: str, why: str) -> None:
    """An endpoint that can't be is refused with its place, itself, the reason and how it could be written."""
    with pytest.raises(AssemblyError) as caught:
        parse_listeners(MemoryReactor(), listed("127.0.0.1:1883", text))

    message = str(caught.value)
    assert message.startswith(f"k.toml:2: broker.listen: {text!r} is not an endpoint (")
    assert why in message
    assert "\n" not in message


@pytest.mark.parametrize("again", ["127.0.0.1:1883", "tcp:1883:interface=127.0.0.1"])
def test_an_endpoint_named_twice(again: str) -> None:
    """The same endpoint twice is refused, also where it is written differently."""
    with pytest.raises(AssemblyError, match="twice; remove one"):
        parse_listeners(MemoryReactor(), listed("127.0.0.1:1883", again))


# Opening


@define
class Port:
    """A listening port that notes down that it was closed."""

    closed: bool = False

    def stopListening(self) -> Deferred[None]:
        """Close."""
        self.closed = True
        return succeed(None)


@define
class Endpoint:
    """An endpoint that opens, or fails to."""

    error: Exception | None = None
    port: Port = field(factory=Port)
    factories: list[Any] = field(factory=list)

    def listen(self, factory: Any) -> Deferred[Port]:
        """Open."""
        self.factories.append(factory)
        if self.error is not None:
            raise self.error
        return succeed(self.port)


def opened(endpoints: list[Endpoint], kind: str = "test") -> Any:
    """What comes of opening all these."""
    named = {f"{kind}:{number}": ListenerSettings(endpoint="1") for number in range(len(endpoints))}
    ports = [
        ListenerPort(ListenerPlan(name, True, settings), name, endpoint)
        for (name, settings), endpoint in zip(named.items(), endpoints, strict=True)
    ]
    outcome: list[Any] = []
    Deferred.fromCoroutine(open_all(House(listeners=named).broker, ports)).addBoth(outcome.append)
    return outcome[0]


@pytest.mark.parametrize(
    ("kind", "number", "remedy"),
    [
        ("tcp", 98, "; another process listens there (see `ss -ltnp`): stop it, or choose another port"),
        ("tcp", 99, "; this machine has no such address (see `ip address`)"),
        ("tcp", 13, "; ports below 1024 need the capability CAP_NET_BIND_SERVICE: choose another, or grant it"),
        ("tcp", 5, ""),
        ("unix", 98, ""),
        ("unix", 13, ""),
    ],
)
def test_what_can_not_be_listened_on_is_told_with_a_remedy(kind: str, number: int, remedy: str) -> None:
    """Those for ports are not for Unix sockets, whose errors have the same numbers."""
    error = OSError(number, "no")

    failure = opened([Endpoint(error)], kind)

    assert str(failure.value) == f"can't listen on '{kind}:0': {error}{remedy}"


def test_all_listeners_are_opened() -> None:
    """Each endpoint is opened with a factory of its own."""
    endpoints = [Endpoint(), Endpoint()]

    ports = opened(endpoints)

    assert ports == [endpoint.port for endpoint in endpoints]
    assert all(IProtocolFactory.providedBy(endpoint.factories[0]) for endpoint in endpoints)
    assert endpoints[0].factories != endpoints[1].factories


def test_a_storm_is_accepted_in_groups() -> None:
    """However many connections wait: those that there are have their turn in between."""
    made: list[object] = []

    class Counting(Factory):
        def buildProtocol(self, addr: object) -> None:
            made.append(addr)

    port = tcp.Port(0, Counting(), 100, interface="127.0.0.1", reactor=MemoryReactor())
    port.startListening()
    accept_in_groups(port)
    counts = []
    with ExitStack() as stack:
        stack.callback(port.socket.close)
        for _ in range(5 * ACCEPTED_AT_ONCE):
            stack.enter_context(socket.create_connection(("127.0.0.1", port.getHost().port)))
        for _ in range(6):
            before = len(made)
            port.doRead()
            counts.append(len(made) - before)

    assert counts == [ACCEPTED_AT_ONCE] * 5 + [0]


@pytest.mark.parametrize(
    "error",
    [
        CannotListenError("127.0.0.1", 1883, OSError(98, "Address already in use")),
        OSError(98, "Address already in use"),
        OverflowError("Address already in use"),
    ],
)
def test_one_that_fails_closes_the_others(error: Exception) -> None:
    """Where one listener can't be opened those before it are closed, and those after it never open."""
    first, second, third = Endpoint(), Endpoint(error), Endpoint()

    failure = opened([first, second, third])

    assert failure.check(AssemblyError)
    assert "can't listen on 'test:1'" in str(failure.value)
    assert "Address already in use" in str(failure.value)
    assert first.port.closed
    assert third.factories == []


def test_closing_waits_for_every_port() -> None:
    """Closing is done when the last port has closed."""

    class Slow(Port):
        def stopListening(self) -> Deferred[None]:
            self.closed = True
            return pending

    pending: Deferred[None] = Deferred()
    ports: list[Any] = [Slow(), Port()]
    done: list[Any] = []
    Deferred.fromCoroutine(close_all(ports)).addBoth(done.append)
    assert done == []

    pending.callback(None)

    assert done == [None]
    assert [port.closed for port in ports] == [True, True]


def test_a_free_port_is_free() -> None:
    """The ports that these tests use can be listened on."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", free_port()))
