"""The broker as a Twisted service, on a reactor without sockets."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.error import CannotListenError
from twisted.internet.testing import MemoryReactorClock

from kinmqtt.broker.cluster.joining import Joining
from kinmqtt.cli import run as runner
from kinmqtt.config import Overrides, load
from kinmqtt.hooks.discovery import Candidate
from kinmqtt.net.service import BrokerService, next_turn
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError


@pytest.fixture(autouse=True)
def thawed() -> Iterator[None]:
    """Undo what a started broker does to the garbage collector of its process."""
    yield
    gc.unfreeze()
    gc.enable()


class Diary:
    """A plugin that notes down its life."""

    def __init__(self, reactor: MemoryReactorClock) -> None:
        self.reactor = reactor
        self.entries: list[str] = []
        self.start_answer: Any = None

    def note(self, word: str) -> None:
        self.entries.append(f"{word}, {len(self.reactor.tcpServers)} listeners")

    @hookimpl
    def start(self) -> Any:
        self.note("start")
        if isinstance(self.start_answer, Exception):
            raise self.start_answer
        return self.start_answer

    @hookimpl
    def ready(self) -> None:
        self.note("ready")

    @hookimpl
    def drain(self) -> None:
        self.note("drain")

    @hookimpl
    def stop(self) -> None:
        self.note("stop")


class Reactor(MemoryReactorClock):
    """A reactor that refuses the ports a test names, and forgets those that are closed."""

    refused: tuple[int, ...] = ()
    stops = 0

    def listenTCP(self, port: int, factory: Any, backlog: int = 50, interface: str = "") -> Any:
        if port in self.refused:
            raise CannotListenError(interface, port, OSError(98, "Address already in use"))
        opened: Any = super().listenTCP(port, factory, backlog, interface)  # type: ignore[no-untyped-call]
        place = self.tcpServers[-1]
        opened.stopListening = lambda: self.tcpServers.remove(place)
        return opened

    def stop(self) -> None:
        self.stops += 1


@pytest.fixture
def reactor() -> Reactor:
    """A reactor that is running."""
    made = Reactor()  # type: ignore[no-untyped-call]
    made.running = True
    replaced: Any = made
    replaced.callWhenRunning = lambda call, *arguments: call(*arguments)
    return made


@pytest.fixture
def diary(reactor: Reactor, monkeypatch: pytest.MonkeyPatch) -> Diary:
    """The one plugin that is installed."""
    plugin = Diary(reactor)
    monkeypatch.setattr(runner, "installed_candidates", lambda: [Candidate("diary", "test", "", False, plugin)])
    return plugin


def service_of(reactor: Reactor, *listen: str) -> BrokerService:
    """A service that listens there."""
    settings = load(None, Overrides(listen or ("127.0.0.1:1883", "127.0.0.1:1884"), data="memory"), {})
    return runner.build_service(settings, reactor)


def test_nothing_happens_before_the_start(reactor: Reactor, diary: Diary) -> None:
    """A service that was only made has started no plugin and opened nothing."""
    service_of(reactor)

    assert diary.entries == []
    assert reactor.tcpServers == []


def test_the_order_of_a_life(reactor: Reactor, diary: Diary) -> None:
    """Plugins start before the listeners open, hear that they are open, and stop after they have closed."""
    service = service_of(reactor)

    service.startService()
    reactor.advance(0)
    stopped = service.stopService()
    reactor.advance(0)

    assert stopped.called
    assert diary.entries == ["start, 0 listeners", "ready, 2 listeners", "drain, 0 listeners", "stop, 0 listeners"]
    assert service.failed is None
    assert reactor.stops == 0


def test_a_plugin_that_can_not_start(reactor: Reactor, diary: Diary) -> None:
    """A plugin that fails to start is named, nothing is opened, and the reactor is stopped."""
    diary.start_answer = ValueError("no cheese")
    service = service_of(reactor)

    service.startService()

    assert service.failed == "plugin 'diary' can't start: ValueError: no cheese"
    assert reactor.tcpServers == []
    assert reactor.stops == 1
    assert service.stopService().called


def test_a_port_in_use_stops_what_was_started(reactor: Reactor, diary: Diary) -> None:
    """Where one listener can't be opened none stays open, and the plugins that were started are stopped."""
    reactor.refused = (1884,)
    service = service_of(reactor)

    service.startService()
    reactor.advance(0)

    assert service.failed is not None
    assert "can't listen on 'tcp:1884:interface=127.0.0.1" in service.failed
    assert "Address already in use" in service.failed
    assert reactor.tcpServers == []
    assert diary.entries == ["start, 0 listeners", "drain, 0 listeners", "stop, 0 listeners"]
    assert reactor.stops == 1


def test_a_broker_that_is_out_of_its_cluster_ends_and_says_why(reactor: Reactor, diary: Diary) -> None:
    """The command then begins anew with a new process; it has failed at nothing."""
    service = service_of(reactor)
    service.startService()
    reactor.advance(0)
    nodes = service.broker.lifecycle._nodes

    nodes.expelled("the others can't reach it")
    nodes.expelled("said twice")

    assert service.expelled == "the others can't reach it"
    assert service.failed is None
    assert reactor.stops == 1
    service.stopService()
    reactor.advance(0)


def test_told_to_stop_while_it_starts(reactor: Reactor, diary: Diary) -> None:
    """A service that is stopped while a plugin still starts opens nothing when that plugin is done."""
    pending: Deferred[None] = Deferred()
    diary.start_answer = pending
    service = service_of(reactor)
    service.startService()

    service.stopService()
    pending.callback(None)
    reactor.advance(1)

    assert reactor.tcpServers == []
    assert service.failed is None
    assert reactor.stops == 0


def test_told_to_stop_while_it_waits_for_its_cluster(reactor: Reactor, diary: Diary) -> None:
    """A wait for other nodes has no end of its own: the stop ends it at once, and that is no failure."""
    waiting: Deferred[None] = Deferred()
    service = service_of(reactor)
    service.broker.lifecycle.joining = Joining(cast(Any, SimpleNamespace(start=lambda node, listener: waiting)))
    service.startService()

    stopped = service.stopService()
    reactor.advance(0)

    assert stopped.called
    assert diary.entries == ["start, 0 listeners", "stop, 0 listeners"]
    assert service.failed is None
    assert reactor.stops == 0


def test_told_to_stop_before_it_would_wait_for_its_cluster(reactor: Reactor, diary: Diary) -> None:
    """A stop that comes while a plugin starts does not let the wait for other nodes begin."""
    pending: Deferred[None] = Deferred()
    diary.start_answer = pending
    started: list[object] = []
    service = service_of(reactor)
    service.broker.lifecycle.joining = Joining(cast(Any, SimpleNamespace(start=lambda *it: started.append(it))))
    service.startService()

    stopped = service.stopService()
    pending.callback(None)
    reactor.advance(0)

    assert stopped.called
    assert started == []
    assert service.failed is None


def test_a_cluster_that_can_not_be_joined_is_told(reactor: Reactor, diary: Diary) -> None:
    """A backend that fails to start is an error of the start, as nobody has stopped the broker."""
    waiting: Deferred[None] = Deferred()
    service = service_of(reactor)
    service.broker.lifecycle.joining = Joining(cast(Any, SimpleNamespace(start=lambda node, listener: waiting)))
    service.startService()

    waiting.errback(AssemblyError("no such cookie"))

    assert service.failed == "no such cookie"
    assert reactor.stops == 1


def test_a_plugin_that_fails_while_it_is_stopped(reactor: Reactor, diary: Diary) -> None:
    """A plugin that fails to start after the stop was asked for is still told of, and stops nothing twice."""
    pending: Deferred[None] = Deferred()
    diary.start_answer = pending
    service = service_of(reactor)
    service.startService()

    service.stopService()
    pending.errback(ValueError("no cheese"))

    assert service.failed == "plugin 'diary' can't start: ValueError: no cheese"
    assert reactor.stops == 0


def test_the_next_turn_of_any_reactor(reactor: Reactor) -> None:
    """On a reactor without an asyncio loop the next turn is a call in no time."""
    calls: list[str] = []
    next_turn(reactor)(lambda: calls.append("made"))
    assert calls == []

    reactor.advance(0)

    assert calls == ["made"]


def test_the_next_turn_of_an_asyncio_reactor() -> None:
    """On the asyncio reactor the loop itself makes the call in its next turn."""

    class AsyncioReactor:
        _asyncioEventloop = asyncio.new_event_loop()

    loop = AsyncioReactor._asyncioEventloop
    try:
        assert next_turn(AsyncioReactor()) == loop.call_soon
    finally:
        loop.close()
