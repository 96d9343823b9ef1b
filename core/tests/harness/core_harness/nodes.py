"""Several whole brokers in one process, connected by a cluster backend whose traffic the test controls."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt.testing import BrokerHarness
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import NodeGone
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.shared_queue import NodeQueueStore
from kinmqtt_spi.memory.shared_session import NodeSessionStore, SharedSessionStore
from kinmqtt_spi.services.cluster import (
    ClusterBackend,
    ClusterListener,
    Guarantee,
    HandOff,
    LinkState,
    Located,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.values import Maybe, NodeIdentity


class Wires:
    """The traffic between nodes: in order for each pair, and only where it is not cut."""

    def __init__(self) -> None:
        self.backends: dict[NodeIdentity, Wired] = {}
        self.queues: dict[tuple[NodeIdentity, NodeIdentity], deque[Callable[[], object]]] = {}
        self.cut: set[tuple[NodeIdentity, NodeIdentity]] = set()
        self.leaving: list[NodeIdentity] = []
        self.is_shared = True
        """Whether the nodes share their stores; else this knows who owns a client id."""
        self.owners: dict[str, Located] = {}
        self.claims: dict[str, deque[Deferred[Located]]] = {}
        """By client id: who claims it, the first one now."""

    def send(self, source: NodeIdentity, target: NodeIdentity, call: Callable[[], object]) -> None:
        """Make a call at the target, later."""
        self.queues.setdefault((source, target), deque()).append(call)

    def pump(self) -> bool:
        """Let what is under way arrive; tells whether there was any."""
        arrived = False
        for pair, queue in list(self.queues.items()):
            while queue and pair not in self.cut and pair[1] in self.backends:
                queue.popleft()()
                arrived = True
        return arrived


class Wired(ClusterBackend):
    """One node's backend."""

    guarantees = Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER

    def __init__(self, wires: Wires) -> None:
        self.wires = wires
        self.me: NodeIdentity
        self.listener: ClusterListener
        self.routes: dict[tuple[str, str | None], RouteChange] = {}
        self.version = 0
        self.seen: dict[NodeIdentity, int] = {}
        self.waiting: dict[NodeIdentity, list[Deferred[Any]]] = {}
        self.sent: list[tuple[str, NodeIdentity, bytes]] = []
        self.asked: list[tuple[NodeIdentity, str, bytes]] = []

    @hookimpl
    def cluster_backend(self) -> ClusterBackend:
        return self

    def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        self.me, self.listener = node, listener
        self.wires.backends[node] = self
        listener.member_changed(Member(node, MemberState.JOINING))
        for other in self.others():
            listener.member_changed(Member(other.me, MemberState.UP))
            listener.routes_changed(other.me, other.version, list(other.routes.values()), [])
            other.listener.member_changed(Member(node, MemberState.JOINING))
            other.seen[node] = other.version

    def up(self) -> None:
        for other in (self, *self.others()):
            other.listener.member_changed(Member(self.me, MemberState.UP))

    def leaving(self) -> None:
        self.wires.leaving.append(self.me)
        for other in (self, *self.others()):
            other.listener.member_changed(Member(self.me, MemberState.LEAVING))

    def leave(self, deadline_s: float) -> None:
        self.listener.member_changed(Member(self.me, MemberState.LEAVING))

    def stop(self) -> None:
        self.wires.backends.pop(self.me, None)

    def others(self) -> list[Wired]:
        return [each for each in self.wires.backends.values() if each is not self]

    def members(self) -> Sequence[Member]:
        return [Member(node, MemberState.UP) for node in self.wires.backends]

    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        self.version = version
        for route in removed:
            self.routes.pop(route.key, None)
        self.routes.update({route.key: route for route in added})
        for other in self.others():

            def tell(other: Wired = other) -> None:
                other.listener.routes_changed(self.me, version, added, removed)
                self.seen[other.me] = version

            self.wires.send(self.me, other.me, tell)

    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        done: Deferred[Sequence[NodeIdentity]] = Deferred()
        others = {each.me for each in self.others()}
        if not others:
            return ()

        def known(node: NodeIdentity) -> None:
            others.discard(node)
            if not others:
                done.callback(())

        for node in tuple(others):
            self.wires.send(self.me, node, partial(known, node))
        return done

    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        self.sent.append(("push", node, batch))
        self.wires.send(self.me, node, lambda: self.wires.backends[node].listener.received(self.me, batch, False))
        return True

    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Maybe[bytes]:
        self.sent.append(("deliver", node, batch))
        return self.call(node, lambda other: other.listener.received(self.me, batch, True))

    def call(self, node: NodeIdentity, make: Callable[[Wired], Maybe[Any]]) -> Deferred[Any]:
        """Make a call at another node, and bring its result back."""
        if node not in self.wires.backends:
            raise NodeGone(f"node {node.name} is gone")
        done: Deferred[Any] = Deferred()
        self.waiting.setdefault(node, []).append(done)

        def answered(result: Any) -> None:
            if not done.called:
                done.callback(result)

        def back(result: Any) -> None:
            self.wires.send(node, self.me, partial(answered, result))

        def arrive() -> None:
            try:
                result = make(self.wires.backends[node])
            except Exception as error:
                back(Failure(error))
                return
            if isinstance(result, Awaitable):
                as_deferred(result).addBoth(back)
            else:
                back(result)

        self.wires.send(self.me, node, arrive)
        return done

    def link(self, node: NodeIdentity) -> LinkState:
        return LinkState(1 << 20, 0, 0.0)

    def locate(self, client_id: str) -> Maybe[Located | None]:
        if self.wires.is_shared:
            return None
        mine: Deferred[Located] = Deferred()
        line = self.wires.claims.setdefault(client_id, deque())
        line.append(mine)
        if len(line) == 1:
            mine.callback(self.wires.owners.get(client_id, Located(None, 0)))
        return mine

    def end_claim(self, client_id: str) -> None:
        wires = self.wires
        if wires.is_shared:
            return
        line = wires.claims[client_id]
        line.popleft()
        if line:
            line[0].callback(wires.owners.get(client_id, Located(None, 0)))
        else:
            del wires.claims[client_id]

    def register(self, client_id: str, epoch: int) -> None:
        self.wires.owners[client_id] = Located(self.me, epoch)

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        if previous_owner is None or previous_owner == self.me or previous_owner not in self.wires.backends:
            return None
        return self.call(previous_owner, lambda other: other.listener.session_claimed(client_id, epoch, self.me))

    def release(self, client_id: str, epoch: int) -> None:
        owners = self.wires.owners
        if owners.get(client_id) == Located(self.me, epoch):
            owners[client_id] = Located(None, epoch)

    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        moving = _Moving(self, to)
        begun = self.call(to, lambda other: moving.begin(other.listener.handing(client_id, epoch, self.me)))
        return begun.addCallback(lambda _: moving)

    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        self.asked.append((node, method, data))
        return self.call(node, lambda other: other.listener.asked(self.me, method, data))


class _Moving(HandOff):
    """The sender's end of a hand-off."""

    def __init__(self, backend: Wired, to: NodeIdentity) -> None:
        self._backend = backend
        self._to = to
        self._other: HandOff

    def begin(self, other: HandOff) -> None:
        self._other = other

    def chunk(self, data: bytes) -> Maybe[None]:
        return self._backend.call(self._to, lambda _: self._other.chunk(data))

    def commit(self) -> Maybe[None]:
        return self._backend.call(self._to, lambda _: self._other.commit())

    def abort(self) -> Maybe[None]:
        return self._backend.call(self._to, lambda _: self._other.abort())


class SharedStores:
    """Stores that all nodes use."""

    def __init__(self) -> None:
        self.sessions = SharedSessionStore()
        self.queues = MemoryQueueStore(shared=True)
        self.retained = MemoryRetainStore(shared=True)


class NodeStores:
    """The plugin that gives one node its view of the shared stores."""

    def __init__(self, stores: SharedStores, node: NodeIdentity) -> None:
        self.sessions = stores.sessions.view(node)
        self.queues = NodeQueueStore(stores.queues, self.sessions.is_home)
        self.retained = stores.retained

    @hookimpl
    def session_store(self) -> NodeSessionStore:
        return self.sessions

    @hookimpl
    def queue_store(self) -> NodeQueueStore:
        return self.queues

    @hookimpl
    def retain_store(self) -> MemoryRetainStore:
        return self.retained


class Nodes:
    """Brokers named ``n1``, ``n2`` and so on, with shared stores unless ``shared`` is false."""

    def __init__(
        self, count: int, *, shared: bool = True, plugins: Mapping[str, Any] | None = None, **more: Any
    ) -> None:
        """All brokers use the same ``plugins``."""
        self.wires = Wires()
        self.wires.is_shared = shared
        self.clock = TurnableClock()
        self.stores = SharedStores()
        self.brokers: list[BrokerHarness] = []
        self.backends: list[Wired] = []
        self._shared = shared
        self._more = more
        self._plugins = plugins or {}
        for _ in range(count):
            self.add()

    def add(self, **more: Any) -> BrokerHarness:
        """Start one more broker; ``more`` goes to its harness, beside what all brokers have.

        It may have the ``name`` of one that was killed.
        """
        number = len(self.brokers) + 1
        node = NodeIdentity(more.pop("name", f"n{number}"), number)
        backend = Wired(self.wires)
        plugins: dict[str, Any] = {**self._plugins, **more.pop("plugins", {}), "wired": backend}
        if self._shared:
            plugins["stores"] = NodeStores(self.stores, node)
        if self._shared:
            more["services"] = dict.fromkeys(("session", "queue", "retain"), "stores")
        broker = BrokerHarness(
            plugins=plugins,
            clock=self.clock,
            node=node,
            start=False,
            **{**self._more, **more},
        )
        settle = broker.settle
        broker.settle = self.settle  # type: ignore[method-assign]
        broker.settle_alone = settle  # type: ignore[attr-defined]
        self.brokers.append(broker)
        self.backends.append(backend)
        broker.result(broker.broker.start())
        return broker

    def settle(self) -> None:
        """Let everything happen that needs no time, on all nodes."""
        busy = True
        while busy:
            for broker in self.brokers:
                getattr(broker, "settle_alone", broker.settle)()
            busy = self.wires.pump()

    def advance(self, seconds: float) -> None:
        """Let time pass on all nodes."""
        steps = int(seconds * 4)
        for _ in range(steps):
            self.clock.advance(0.25)
            self.settle()

    def kill(self, number: int, *, down: bool = True) -> None:
        """End a node without a word; with ``down`` the others know at once."""
        backend = self.backends[number]
        broker = self.brokers[number]
        node = backend.me
        del self.wires.backends[node]
        for pair, queue in self.wires.queues.items():
            if node in pair:
                queue.clear()
        broker._soon.clear()
        broker._soon = _Nothing()
        broker.peers.clear()
        if down:
            self.down(number)

    def down(self, number: int) -> None:
        """Tell the others that a node is DOWN."""
        node = self.backends[number].me
        for other in list(self.wires.backends.values()):
            other.listener.member_changed(Member(node, MemberState.DOWN))
            for done in other.waiting.pop(node, []):
                if not done.called:
                    done.errback(NodeGone(f"node {node.name} is gone"))
        self.settle()


class _Nothing(deque[Callable[[], object]]):
    """What a dead process has to do."""

    def append(self, call: Callable[[], object]) -> None:
        pass
