"""The stores that come with the broker keep their contracts: the embedded one over restarts, and those in memory."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from kinmqtt.builtins import memory
from kinmqtt.builtins.embedded import Embedded, EmbeddedSettings
from kinmqtt.builtins.embedded.image import EVENTS
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext, TurnableClock
from kinmqtt_spi.services.event import EventLog
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.testing.build import event
from kinmqtt_spi.testing.contract import StoreContract
from kinmqtt_spi.testing.event import EventLogContract
from kinmqtt_spi.testing.queue import QueueStoreContract
from kinmqtt_spi.testing.retain import RetainStoreContract
from kinmqtt_spi.testing.session import SessionStoreContract


class EmbeddedStores(StoreContract):
    """The embedded plugin over a directory; one life of it ends as a broker that is killed leaves it."""

    survives_restart = True
    can_fail = True
    durability: Any = "commit"
    provide: str
    """The name of the plugin's hook that gives the store."""

    @pytest.fixture
    def lives(self, tmp_path: Path, clock: TurnableClock, drive: Any) -> Iterator[Any]:
        """Begins a life of the plugin, and answers its store."""
        self.begin: Callable[[], Any] = lambda: self._begun(tmp_path / "data", clock, drive)
        yield self.begin
        self.end(drive)

    def end(self, drive: Any) -> None:
        """The broker is killed."""
        plugin: Any = self.plugin
        plugin._journal.abandon()
        plugin._directory.close()

    def reopened(self, store: Any, drive: Any) -> Any:
        self.end(drive)
        return self.begin()

    def failing(self, store: Any) -> Callable[[], object]:
        ledger: Any = self.plugin._ledger
        append = ledger.append

        def refuse(data: bytes) -> None:
            raise ServiceUnavailable("embedded: the test's disk is full")

        ledger.append = refuse
        return lambda: setattr(ledger, "append", append)

    def _begun(self, data: Path, clock: TurnableClock, drive: Any) -> Any:
        data.mkdir(exist_ok=True)
        self.plugin = Embedded()
        context = BareContext("embedded", EmbeddedSettings(durability=self.durability), clock=clock, data=data)
        self.plugin.configure(context)
        store = getattr(self.plugin, self.provide)()
        drive(self.plugin.start(context))
        return store


class TestEmbeddedSessionStore(EmbeddedStores, SessionStoreContract):
    """Sessions in a directory."""

    provide = "session_store"

    @pytest.fixture
    def session_store(self, lives: Callable[[], SessionStore]) -> SessionStore:
        return lives()


class TestEmbeddedQueueStore(EmbeddedStores, QueueStoreContract):
    """Queues in a directory."""

    provide = "queue_store"

    @pytest.fixture
    def queue_store(self, lives: Callable[[], QueueStore]) -> QueueStore:
        return lives()


class TestEmbeddedRetainStore(EmbeddedStores, RetainStoreContract):
    """Retained messages in a directory."""

    provide = "retain_store"

    @pytest.fixture
    def retain_store(self, lives: Callable[[], RetainStore]) -> RetainStore:
        return lives()


class _Awaitables(EventLogContract):
    """Handlers are Twisted's coroutines."""

    forgets = True
    takes_awaitables = True

    def forgetting(self, log: Any, drive: Any) -> None:
        numbers = count()
        for _ in range(10):
            self.persist(
                log, lambda: log.append([event("filler", next(numbers)) for _ in range(EVENTS // 10)]), drive
            )

    def held(self, drive: Any) -> tuple[Awaitable[None], Callable[[], object]]:
        deferred: Deferred[None] = Deferred()
        return deferred, lambda: deferred.callback(None)


class TestEmbeddedEventLog(EmbeddedStores, _Awaitables):
    """Events in a directory."""

    provide = "event_log"

    @pytest.fixture
    def event_log(self, lives: Callable[[], EventLog]) -> EventLog:
        return lives()


class _Orderly(EmbeddedStores):
    """A life ends as an orderly stop leaves it, and something counts as kept when the disk has it."""

    durability = "fsync"

    def end(self, drive: Any) -> None:
        drive(self.plugin.stop())


class TestEmbeddedSessionStoreInOrder(_Orderly, TestEmbeddedSessionStore):
    """Sessions, with orderly stops."""


class TestEmbeddedQueueStoreInOrder(_Orderly, TestEmbeddedQueueStore):
    """Queues, with orderly stops."""


class TestEmbeddedRetainStoreInOrder(_Orderly, TestEmbeddedRetainStore):
    """Retained messages, with orderly stops."""


class TestEmbeddedEventLogInOrder(_Orderly, TestEmbeddedEventLog):
    """Events, with orderly stops."""


class TestMemorySessionStore(SessionStoreContract):
    """Sessions of the plugin in memory."""

    @pytest.fixture
    def session_store(self) -> SessionStore:
        return memory.session_store()


class TestMemoryQueueStore(QueueStoreContract):
    """Queues of the plugin in memory."""

    @pytest.fixture
    def queue_store(self) -> QueueStore:
        return memory.queue_store()


class TestMemoryRetainStore(RetainStoreContract):
    """Retained messages of the plugin in memory."""

    @pytest.fixture
    def retain_store(self) -> RetainStore:
        return memory.retain_store()


class TestMemoryEventLog(_Awaitables):
    """Events of the plugin in memory."""

    @pytest.fixture
    def event_log(self, clock: TurnableClock) -> EventLog:
        return memory.event_log(BareContext("memory", clock=clock))
