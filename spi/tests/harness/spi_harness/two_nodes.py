"""A cluster in one process: as many nodes as are made, whose messages take a moment of the clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from typing import Any, Protocol

from attrs import define

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
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
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.values import Maybe, NodeIdentity

CREDIT_BYTES = 4 << 20
DELAY_S = 0.001


class Timers(Protocol):
    """What a hub needs of a clock."""

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """Make a call after that many seconds."""


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


@define
class Frame:
    """A message on its way to a node."""

    call: Callable[[], object]
    origin: NodeIdentity | None = None
    size_bytes: int = 0
    is_batch: bool = False
    """It is lost with its connection."""


@define
class Assured:
    """A batch of ``deliver`` that was not answered yet."""

    batch: bytes
    messages: int
    answer: Answer


class Hub:
    """The network."""

    def __init__(self, clock: Timers, delay_s: float = DELAY_S) -> None:
        self.clock = clock
        self.delay_s = delay_s
        """How long each message takes, in seconds of the clock."""
        self.nodes: dict[NodeIdentity, Node] = {}
        self.register: dict[str, Located] = {}
        """The owners of client ids."""
        self.claims: dict[str, deque[Answer]] = {}
        """By client id: claims, of which the first is under way."""

    def run(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Go on with a coroutine each millisecond, until its end."""
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
        self.inbox: deque[Frame] = deque()
        self.stalled = False
        self.waiting: dict[NodeIdentity, list[Answer]] = {}
        self.serial = 0
        self.assured: dict[NodeIdentity, dict[int, Assured]] = {}
        """What each other has not answered, by number."""
        self.taken: dict[NodeIdentity, set[int]] = {}
        """The numbers of the batches that each other has sent."""

    # The interface

    def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
        self.me, self.listener = node, listener
        self.become(Member(node, MemberState.JOINING))
        self.hub.nodes[node] = self
        for other in self.others():
            self.meet(other)
            other.meet(self)
        return self.until(lambda: all(node in other.seen for other in self.others()))

    async def up(self) -> None:
        await self.until(lambda: not self.lagging(self.version))
        self.spread(MemberState.UP)

    def leaving(self) -> None:
        self.spread(MemberState.LEAVING)

    def leave(self, deadline_s: float) -> None:
        self.spread(MemberState.LEAVING)

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
        self.routes.update((each.key, each) for each in added)
        for other in self.others():
            self.tell_routes(other, version, added, removed)

    def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
        return self.wait_for_routes(version, limit_s)

    def push(self, node: NodeIdentity, batch: bytes) -> bool:
        other, me = self.at(node), self.me
        if len(batch) > self.credit(other):
            return False
        other.send(Frame(lambda: other.take(me, batch, None), me, len(batch), is_batch=True))
        return True

    def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
        other = self.at(node)
        answer = self.expect(node)
        self.serial += 1
        self.assured.setdefault(node, {})[self.serial] = Assured(batch, messages, answer)
        self.transmit(other, self.serial, batch, answer)
        return answer

    def link(self, node: NodeIdentity) -> LinkState:
        other = self.at(node)
        return LinkState(self.credit(other), self.queued(other), self.hub.delay_s)

    def locate(self, client_id: str) -> Maybe[Located | None]:
        claim = Answer()
        line = self.hub.claims.setdefault(client_id, deque())
        line.append(claim)
        if len(line) == 1:
            claim.give(self.located(client_id))
        return claim

    def located(self, client_id: str) -> Located:
        return self.hub.register.get(client_id, Located(None, 0))

    def end_claim(self, client_id: str) -> None:
        line = self.hub.claims[client_id]
        line.popleft()
        if line:
            line[0].give(self.located(client_id))

    def register(self, client_id: str, epoch: int) -> None:
        self.hub.register[client_id] = Located(self.me, epoch)

    def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
        if previous_owner is None or previous_owner == self.me or previous_owner not in self.hub.nodes:
            return None
        other, me = self.at(previous_owner), self.me
        answer = self.expect(previous_owner)
        other.send(Frame(lambda: other.let_go(client_id, epoch, me, answer)))
        return answer

    def release(self, client_id: str, epoch: int) -> None:
        if self.hub.register.get(client_id) == Located(self.me, epoch):
            self.hub.register[client_id] = Located(None, epoch)

    async def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> HandOff:
        moving = self.moving(self.at(to))
        await moving.begin(client_id, epoch)
        return moving

    def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
        other, me = self.at(node), self.me
        answer = self.expect(node)
        other.send(Frame(lambda: other.reply(me, method, data, answer)))
        self.hub.clock.later(limit_s, lambda: answer.fail(ServiceUnavailable(f"{node.name} does not answer")))
        return answer

    # Members and links

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

    def spread(self, state: MemberState) -> None:
        if self.me is not None:
            for each in (self, *self.others()):
                each.become(Member(self.me, state))

    def meet(self, other: Node) -> None:
        assert other.me is not None
        self.become(other.known[other.me])
        self.tell_routes(other, self.version, tuple(self.routes.values()), ())

    def lose(self, node: NodeIdentity) -> None:
        if self.listener is not None:
            self.listener.member_changed(Member(node, MemberState.REMOVED, False))
        for table in (self.known, self.seen, self.assured, self.taken):
            table.pop(node, None)
        for answer in self.waiting.pop(node, ()):
            answer.fail(NodeGone(f"node {node.name} is gone"))

    def expect(self, node: NodeIdentity) -> Answer:
        answer = Answer()
        self.waiting.setdefault(node, []).append(answer)
        return answer

    def queued(self, other: Node) -> int:
        return sum(frame.size_bytes for frame in other.inbox if frame.origin == self.me)

    def credit(self, other: Node) -> int:
        return max(0, CREDIT_BYTES - self.queued(other))

    def send(self, frame: Frame) -> None:
        """To this node, in order."""
        self.inbox.append(frame)
        self.hub.clock.later(self.hub.delay_s, self.pump)

    def pump(self) -> None:
        if self.inbox and not self.stalled:
            self.inbox.popleft().call()

    def stall(self) -> Callable[[], object]:
        self.stalled = True
        return self.go_on

    def go_on(self) -> None:
        self.stalled = False
        for _ in range(len(self.inbox)):
            self.hub.clock.later(self.hub.delay_s, self.pump)

    def cut(self) -> None:
        """Break the connections: what is on its way is lost, and what was not answered is sent again."""
        for other in self.others():
            self.reconnect(other)
            other.reconnect(self)

    def reconnect(self, other: Node) -> None:
        other.inbox = deque(frame for frame in other.inbox if not (frame.is_batch and frame.origin == self.me))
        assert other.me is not None
        for serial, sent in self.assured.get(other.me, {}).items():
            if not sent.answer.done():
                self.transmit(other, serial, sent.batch, sent.answer)

    # Batches, claims, questions and routes

    def transmit(self, other: Node, serial: int, batch: bytes, answer: Answer) -> None:
        me = self.me
        other.send(Frame(lambda: other.take(me, batch, answer, serial), me, len(batch), is_batch=True))

    def take(self, origin: Any, batch: bytes, answer: Answer | None, serial: int = 0) -> None:
        if answer is None:
            self.hub.run(passed_on(lambda: self.receive(origin, batch, False), Answer()))
        elif self.is_new(origin, serial):
            self.hub.run(passed_on(lambda: self.receive(origin, batch, True), answer))

    def is_new(self, origin: NodeIdentity, serial: int) -> bool:
        taken = self.taken.setdefault(origin, set())
        if serial in taken:
            return False
        taken.add(serial)
        return True

    def receive(self, origin: Any, batch: bytes, assured: bool) -> Maybe[bytes]:
        assert self.listener is not None
        try:
            return self.listener.received(origin, batch, assured)
        except MalformedBatch as error:
            self.cut()
            raise ServiceUnavailable("the batch could not be read") from error

    def let_go(self, client_id: str, epoch: int, owner: Any, answer: Answer) -> None:
        listener = self.listener
        assert listener is not None
        self.hub.run(passed_on(lambda: listener.session_claimed(client_id, epoch, owner), answer))

    def reply(self, origin: Any, method: str, data: bytes, answer: Answer) -> None:
        listener = self.listener
        assert listener is not None
        self.hub.run(passed_on(lambda: listener.asked(origin, method, data), answer))

    def moving(self, to: Node) -> Moving:
        return Moving(self, to)

    def tell_routes(
        self, other: Node, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        me = self.me
        assert me is not None

        def tell() -> None:
            assert other.listener is not None
            if version:
                other.listener.routes_changed(me, version, added, removed)
            if other.me is not None:
                self.seen[other.me] = version

        other.send(Frame(tell))

    async def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            await _Moment()

    async def wait_for_routes(self, version: int, limit_s: float) -> Sequence[NodeIdentity]:
        limit = Answer()
        timer = self.hub.clock.later(limit_s, limit.give)
        await self.until(lambda: limit.done() or not self.lagging(version))
        timer.cancel()
        return self.lagging(version)

    def lagging(self, version: int) -> list[NodeIdentity]:
        return [other for other in self.hub.nodes if other != self.me and self.seen.get(other, 0) < version]


class Moving(HandOff):
    """A session on its way: each step is a message, which the other node answers."""

    def __init__(self, origin: Node, to: Node) -> None:
        self.origin = origin
        self.to = to
        self.end: HandOff

    def begin(self, client_id: str, epoch: int) -> Any:
        me = self.origin.me

        def accept() -> None:
            assert self.to.listener is not None
            assert me is not None
            self.end = self.to.listener.handing(client_id, epoch, me)

        return self.step(accept)

    def chunk(self, data: bytes) -> Any:
        return self.step(lambda: self.end.chunk(data))

    def commit(self) -> Any:
        return self.step(lambda: self.end.commit())

    def abort(self) -> Any:
        return self.step(lambda: self.end.abort())

    def step(self, call: Callable[[], Any]) -> Any:
        assert self.to.me is not None
        answer = self.origin.expect(self.to.me)
        self.to.send(Frame(lambda: self.origin.hub.run(passed_on(call, answer))))
        return answer


class _Moment(Awaitable[None]):
    def __await__(self) -> Generator[Any, None, None]:
        yield


async def passed_on(call: Callable[[], Any], answer: Answer) -> None:
    """Pass an answer of the listener, or its error, to the node that waits for it."""
    try:
        result = call()
        answer.give(await result if isinstance(result, Awaitable) else result)
    except ServiceUnavailable as error:
        answer.fail(error)
    except Exception as error:
        answer.fail(ServiceUnavailable(f"the other node failed: {error}"))
