"""One broker of the world: its life, its link to the others, and the connections of its clients."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt.testing.harness import BrokerHarness
from kinmqtt.testing.world.schedule import NodeClock, Schedule
from kinmqtt.testing.world.stores import NodeQueues, NodeRetained, NodeSessions, SharedStores, StoreAccess
from kinmqtt_spi import hookimpl
from kinmqtt_spi.mesh.network import Network, NetworkNode
from kinmqtt_spi.services.cluster import ClusterBackend, Guarantee
from kinmqtt_spi.values import NodeIdentity

GUARANTEES = Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER


class ClientEnd(Protocol):
    """A client's connection to the node."""

    def collect(self) -> None:
        """Take what the broker has written."""

    def node_ended(self) -> None:
        """The broker's process is over."""


class DeferredResult:
    """A result that the core awaits; see :class:`kinmqtt_spi.mesh.results.Result`."""

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
    """Call one of the two with an awaitable's outcome; see :data:`kinmqtt_spi.mesh.results.Run`."""

    def fail(failure: Failure) -> None:
        error = failure.value
        failed(error if isinstance(error, Exception) else RuntimeError(str(error)))

    as_deferred(it).addCallbacks(done, fail)


class Services:
    """The plugin that gives a node its stores and its link."""

    def __init__(self, sessions: NodeSessions, queues: NodeQueues, retained: NodeRetained, link: NetworkNode):
        self._sessions = sessions
        self._queues = queues
        self._retained = retained
        self._link = link

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

    @hookimpl
    def cluster_backend(self) -> ClusterBackend:
        """Return the node's link."""
        return self._link


class Node:
    """A broker process, from its start to its end."""

    def __init__(
        self, schedule: Schedule, network: Network, stores: SharedStores, random: Random, name: str, uid: int
    ) -> None:
        self.identity = NodeIdentity(name, uid)
        self.clock = NodeClock(schedule)
        self.access = StoreAccess(self.clock, random)
        self.link = NetworkNode(network, Logger("kinmqtt.world"), drive, DeferredResult, guarantees=GUARANTEES)
        sessions = self._sessions = NodeSessions(stores, self.identity, self.access, self.clock)
        queues = NodeQueues(stores, sessions, self.access)
        self.harness = BrokerHarness(
            plugins={"world": Services(sessions, queues, NodeRetained(stores, self.access), self.link)},
            services=dict.fromkeys(("session", "queue", "retain", "cluster"), "world"),
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
        self._network = network

    @property
    def name(self) -> str:
        """The node's name, which a later process may have too."""
        return self.identity.name

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return not self.clock.is_dead

    def start(self) -> None:
        """Begin to start; clients can connect when it is done."""

        def started(result: object) -> None:
            if isinstance(result, Failure):
                self.problem = result
            elif self.is_alive:
                self.accepts = True

        Deferred.fromCoroutine(self.harness.broker.start()).addBoth(started)

    def stop(self, when_stopped: Callable[[], object]) -> None:
        """Begin to stop in good order."""
        self.accepts = False

        def stopped(result: object) -> None:
            if isinstance(result, Failure):
                self.problem = result
            if self.is_alive:
                self.end()
                # It gives its lease up, as one does that ends in good order.
                self._sessions.shared.bury(self.identity)
                when_stopped()

        Deferred.fromCoroutine(self.harness.broker.stop()).addBoth(stopped)

    def crash(self) -> None:
        """End at once: nothing is said to anybody."""
        if self.identity.uid in self._network.nodes:
            self._network.crash(self.identity.uid)
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
        if not soon:
            return False
        while soon:
            soon.popleft()()
        for wire in tuple(self.wires):
            wire.collect()
        return True


class _Nothing(deque[Callable[[], object]]):
    """What a dead process has to do."""

    def append(self, call: Callable[[], object]) -> None:
        pass
