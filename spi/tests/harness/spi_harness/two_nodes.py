"""A cluster in one process: as many nodes as are made, whose messages take a moment of the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any

from kinmqtt_spi.errors import NodeGone, ServiceUnavailable, SpiError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import (
    ClusterBackend,
    ClusterListener,
    Guarantee,
    HandOff,
    LinkState,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.testing.cluster import BATCH_BYTES
from kinmqtt_spi.values import Maybe, NodeIdentity

CREDIT_BYTES = 2 << 20
STALLED_BYTES = 16 << 10
"""How much is taken for a node that does not read."""
DELAY_S = 0.001


class Answer(Awaitable[Any]):
    """What will be answered."""

    def __init__(self) -> None:
        self._result: list[Any] = []
        self._error: BaseException | None = None

    def done(self) -> bool:
        return bool(self._result) or self._error is not None

    def give(self, value: Any = None) -> None:
        if not self.done():
            self._result.append(value)

    def fail(self, error: BaseException) -> None:
        if not self.done():
            self._error = error

    def __await__(self) -> Generator[Any, None, Any]:
        while not self.done():
            yield
        if self._error is not None:
            raise self._error
        return self._result[0]


class Hub:
    """The network."""

    def __init__(self, clock: TurnableClock) -> None:
        self.clock = clock
        self.nodes: dict[NodeIdentity, Node] = {}

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Go on with a coroutine each moment, until its end."""
        try:
            coroutine.send(None)
        except StopIteration:
            return
        self.clock.later(DELAY_S, lambda: self.run(coroutine))


class Node(ClusterBackend):
    """One node of a hub."""

    guarantees = Guarantee.SINGLE_OWNER | Guarantee.ACKNOWLEDGED_DELIVERY | Guarantee.ORDER_PER_PUBLISHER

    def __init__(self, hub: Hub) -> None:
        self.hub = hub
        self.me: NodeIdentity | None = None
        self.listener: ClusterListener | None = None
        self.known: dict[NodeIdentity, Member] = {}
        self.routes: dict[tuple[str, str | None], RouteChange] = {}
        self.version = 0
        self.seen: dict[NodeIdentity, int] = {}
        """The version of this node's routes that each other has."""
        self.inbox: deque[Callable[[], object]] = deque()
        self.stalled = False
        self.waiting: dict[NodeIdentity, list[Answer]] = {}
        self.pushed_bytes = 0
        """What other nodes have pushed and this one has not read."""

    # The interface

    def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
        self.me, self.listener = node, listener
        self.become(Member(node, MemberState.JOINING))
        self.hub.nodes[node] = self
        for other in self.others():
            self.meet(other)
            other.meet(self)

    def up(self) -> Maybe[None]:
        return self.announce_up()

    async def announce_up(self) -> None:
        while self.lagging(self.version):
            await _Moment()
        assert self.me is not None
        member = Member(self.me, MemberState.UP)
        self.become(member)
        for other in self.others():
            other.become(member)

    def leave(self, deadline_s: float) -> None:
        if self.me is not None:
            member = Member(self.me, MemberState.LEAVING)
            self.become(member)
            for other in self.others():
                other.become(member)

    def stop(self) -> None:
        if self.me is None:
            return
        del self.hub.nodes[self.me]
        for other in self.others():
            other.lose(self.me)
        self.me = self.listener = None
        self.known.clear()
        self.inbox.clear()

    def members(self) -> Sequence[Member]:
        return tuple(self.known.values())

    def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
        self.version = version
        for each in removed:
            self.routes.pop(each.key, None)
        self.routes.update({each.key: each for each in added})
        for other in self.others():
            self.tell_routes(other, version, added, removed)

    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        return self.wait_for_routes(version, limit_s)

    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        other = self.at(node)
        if other.room() < len(batch):
            return False
        other.pushed_bytes += len(batch)
        other.send(lambda: other.take_pushed(self.me, batch))
        return True

    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
        other = self.at(node)
        answer = self.expect(node)
        other.send(lambda: other.take(self.me, batch, answer))
        return answer

    def link(self, node: NodeIdentity) -> LinkState:
        other = self.at(node)
        room = other.room()
        return LinkState(room if room >= BATCH_BYTES else 0, other.pushed_bytes, DELAY_S)

    def room(self) -> int:
        """How much may be pushed to this node."""
        return (STALLED_BYTES if self.stalled else CREDIT_BYTES) - self.pushed_bytes

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        if previous_owner is None or previous_owner == self.me or previous_owner not in self.hub.nodes:
            return None
        other = self.at(previous_owner)
        answer = self.expect(previous_owner)
        other.send(lambda: other.let_go(client_id, epoch, self.me, answer))
        return answer

    def release(self, client_id: str, epoch: int) -> None:
        pass

    def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
        other = self.at(to)
        assert other.listener is not None
        assert self.me is not None
        return other.listener.handing(client_id, epoch, self.me)

    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        other = self.at(node)
        answer = self.expect(node)
        other.send(lambda: other.reply(self.me, method, data, answer))
        self.hub.clock.later(limit_s, lambda: answer.fail(ServiceUnavailable(f"{node.name} does not answer")))
        return answer

    # Within

    def others(self) -> list[Node]:
        return [node for node in self.hub.nodes.values() if node is not self]

    def at(self, node: NodeIdentity) -> Node:
        if node not in self.hub.nodes:
            raise NodeGone(f"node {node.name} is no member")
        return self.hub.nodes[node]

    def become(self, member: Member) -> None:
        self.known[member.node] = member
        if self.listener is not None:
            self.listener.member_changed(member)

    def meet(self, other: Node) -> None:
        assert other.me is not None
        self.become(other.known[other.me])
        if self.version:
            self.tell_now(other, self.version, tuple(self.routes.values()), ())

    def lose(self, node: NodeIdentity) -> None:
        if self.listener is not None:
            self.listener.member_changed(Member(node, MemberState.REMOVED, False))
        self.known.pop(node, None)
        for answer in self.waiting.pop(node, ()):
            answer.fail(NodeGone(f"node {node.name} is gone"))

    def expect(self, node: NodeIdentity) -> Answer:
        answer = Answer()
        self.waiting.setdefault(node, []).append(answer)
        return answer

    def send(self, call: Callable[[], object]) -> None:
        """To this node, in order."""
        self.inbox.append(call)
        self.hub.clock.later(DELAY_S, self.pump)

    def pump(self) -> None:
        if self.inbox and not self.stalled:
            self.inbox.popleft()()

    def stall(self) -> Callable[[], object]:
        self.stalled = True
        return self.go_on

    def go_on(self) -> None:
        self.stalled = False
        for _ in range(len(self.inbox)):
            self.hub.clock.later(DELAY_S, self.pump)

    def take_pushed(self, origin: Any, batch: bytes) -> None:
        assert self.listener is not None
        self.pushed_bytes -= len(batch)
        self.listener.received(origin, batch, False)

    def take(self, origin: Any, batch: bytes, answer: Answer) -> None:
        assert self.listener is not None
        try:
            given = self.listener.received(origin, batch, True)
        except SpiError as error:
            answer.fail(ServiceUnavailable(str(error)))
            return
        self.hub.run(_passed_on(given, answer))

    def reply(self, origin: Any, method: str, data: bytes, answer: Answer) -> None:
        assert self.listener is not None
        try:
            given = self.listener.asked(origin, method, data)
        except SpiError as error:
            answer.fail(error)
            return
        self.hub.run(_passed_on(given, answer))

    def let_go(self, client_id: str, epoch: int, owner: Any, answer: Answer) -> None:
        assert self.listener is not None
        self.hub.run(_passed_on(self.listener.session_claimed(client_id, epoch, owner), answer))

    def tell_routes(
        self, other: Node, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        other.send(lambda: self.tell_now(other, version, added, removed))

    def tell_now(
        self, other: Node, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        assert other.listener is not None
        if self.me is not None and other.me is not None:
            other.listener.routes_changed(self.me, version, added, removed)
            self.seen[other.me] = version

    async def wait_for_routes(self, version: int, limit_s: float) -> Sequence[NodeIdentity]:
        answer = Answer()
        timer = self.hub.clock.later(limit_s, answer.give)
        while self.lagging(version) and not answer.done():
            await _Moment()
        timer.cancel()
        return self.lagging(version)

    def lagging(self, version: int) -> list[NodeIdentity]:
        return [other for other in self.hub.nodes if other != self.me and self.seen.get(other, 0) < version]


class _Moment(Awaitable[None]):
    def __await__(self) -> Generator[Any, None, None]:
        yield


async def _passed_on(awaited: Any, answer: Answer) -> None:
    try:
        answer.give(await awaited if isinstance(awaited, Awaitable) else awaited)
    except Exception as error:
        answer.fail(error)
