"""One broker of the world: its life, its stores, and the connections of its clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kinmqtt.hooks.awaitables import has_result
from kinmqtt.testing.harness import BrokerHarness
from kinmqtt.testing.world.links import Links
from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt.testing.world.stores import NodeQueues, NodeRetained, NodeSessions, SharedStores, StoreAccess
from kinmqtt_spi import hookimpl
from kinmqtt_spi.values import NodeIdentity


class ClientEnd(Protocol):
    """A client's connection to the node."""

    def collect(self) -> None:
        """Take what the broker has written."""

    def node_ended(self) -> None:
        """The broker's process is over."""


class Services:
    """The plugin that gives a node its stores."""

    def __init__(self, sessions: NodeSessions, queues: NodeQueues, retained: NodeRetained) -> None:
        self._sessions = sessions
        self._queues = queues
        self._retained = retained

    @hookimpl
    def session_store(self) -> NodeSessions:
        """Return the node's view of the sessions."""
        return self._sessions

    @hookimpl
    def queue_store(self) -> NodeQueues:
        """Return the node's view of the queues."""
        return self._queues

    @hookimpl
    def retain_store(self) -> NodeRetained:
        """Return the node's view of the retained messages."""
        return self._retained


class Node:
    """A broker process, from its start to its end."""

    def __init__(
        self, schedule: Schedule, links: Links, stores: SharedStores, random: Random, name: str, uid: int
    ) -> None:
        self.identity = NodeIdentity(name, uid)
        self.clock = NodeClock(schedule)
        self.access = StoreAccess(self.clock, random)
        self.link = links.link(self)
        self.clock.around = self.link.around
        sessions = self._sessions = NodeSessions(stores, self.identity, self.access, self.clock)
        queues = NodeQueues(stores, sessions, self.access)
        self.harness = BrokerHarness(
            plugins={
                "world": Services(sessions, queues, NodeRetained(stores, self.access)),
                **self.link.plugins,
            },
            plugin_settings=self.link.settings,
            services={**dict.fromkeys(("session", "queue", "retain"), "world"), **self.link.services},
            clock=self.clock,  # type: ignore[arg-type]  # it needs no more than a clock
            node=self.identity,
            start=False,
        )
        self.wires: list[ClientEnd] = []
        """The connections of clients."""
        self.accepts = False
        """Whether clients can connect."""
        self.problem: Failure | None = None
        """Why it could not start or stop."""
        self._starting: Deferred[None] | None = None
        self._is_given_up = False
        """Whether it was stopped before it had started."""

    @property
    def name(self) -> str:
        """The node's name, which a later process may have too."""
        return self.identity.name

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self.clock.is_dead

    def soon(self, call: Callable[[], object]) -> None:
        """Make a call in one of the next turns."""
        self.harness._soon.append(call)

    @property
    def reaches_stores(self) -> bool:
        """Whether its lease is renewed."""
        return not (self.clock.is_dead or self.clock.is_frozen or self.access.is_away)

    def start(self, failed: Callable[[Failure], object]) -> None:
        """Begin to start; clients can connect when it is done. ``failed`` is called if it can't."""

        def started(result: object) -> None:
            if isinstance(result, Failure):
                if not self._is_given_up:
                    failed(result)
            elif self.is_alive and not self._is_given_up:
                self.accepts = True

        self.clock.run(lambda: self._begin(self.harness.broker.start()).addBoth(started))

    def _begin(self, start: Coroutine[Any, Any, None]) -> Deferred[None]:
        self._starting = Deferred.fromCoroutine(start)
        return self._starting

    def stop(self, when_stopped: Callable[[], object]) -> None:
        """Begin to stop in good order."""
        self.accepts = False

        def stopped(result: object) -> None:
            if isinstance(result, Failure):
                self.problem = result
            if self.is_alive:
                self.end()
                if not self.access.is_away:
                    # It gives its lease up, as one does that ends in good order.
                    self._sessions.shared.bury(self.identity)
                when_stopped()

        self.clock.run(lambda: Deferred.fromCoroutine(self._stop()).addBoth(stopped))

    async def _stop(self) -> None:
        """Stop as the command ``kinmqtt run`` does: a broker that waits for others gives up."""
        starting = self._starting
        if starting is not None and not has_result(starting):
            self._is_given_up = True
            self.harness.broker.lifecycle.joining.give_up()
            over: Deferred[None] = Deferred()
            starting.addBoth(lambda _: over.callback(None))
            await over
            if not self.harness.broker.lifecycle.is_restored:
                return
        await self.harness.broker.stop()

    def crash(self) -> None:
        """End at once: nothing is said to anybody."""
        self.link.crash()
        self.end()

    def end(self) -> None:
        """The process is over."""
        self.accepts = False
        self.clock.is_dead = True
        self.harness._soon.clear()
        self.harness._soon = _Nothing()
        wires, self.wires = self.wires, []
        for wire in wires:
            wire.node_ended()

    def settle(self) -> bool:
        """Run the turns that are due, and take what was written to clients; returns whether there were any."""
        soon = self.harness._soon
        if not soon or self.clock.is_frozen:
            return False
        self.clock.around(self._turns)
        return True

    def _turns(self) -> None:
        soon = self.harness._soon
        while soon:
            soon.popleft()()
        for wire in tuple(self.wires):
            wire.collect()


class _Nothing(deque[Callable[[], object]]):
    """What a dead process has to do."""

    def append(self, call: Callable[[], object]) -> None:
        pass
