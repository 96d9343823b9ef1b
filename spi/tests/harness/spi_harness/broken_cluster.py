"""Cluster backends that break one promise each."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import (
    ClusterListener,
    HandOff,
    LinkState,
    Located,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.values import Maybe, NodeIdentity
from spi_harness.two_nodes import CREDIT_BYTES, Answer, Hub, Node


class SoundNodes(ClusterBackendContract):
    """``double`` is the backend of both nodes, which breaks nothing here."""

    has_peers = can_stall = True
    double: type[Node] = Node

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> Node:
        return self.double(Hub(clock))

    def peer(self, cluster_backend: Any) -> Node:
        return self.double(cluster_backend.hub)

    def stall(self, cluster_backend: Any) -> Callable[[], object]:
        stop: Callable[[], object] = cluster_backend.stall()
        return stop


class TestCLUSTER_01_IsUpInSilence(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
            super().start(node, _Deaf(listener))


class _Deaf:
    def __init__(self, listener: ClusterListener) -> None:
        self.listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)

    def member_changed(self, member: Member) -> None:
        pass


class TestCLUSTER_01_IsUpTooSoon(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
            super().start(node, listener)
            self.become(Member(node, MemberState.UP))


class TestCLUSTER_02_CountsOthersOnly(SoundNodes):
    class double(Node):
        def members(self) -> Sequence[Member]:
            return [each for each in super().members() if each.node != self.me]


class TestCLUSTER_03_WaitsForItself(SoundNodes):
    class double(Node):
        def lagging(self, version: int) -> list[NodeIdentity]:
            return [other for other in self.hub.nodes if self.seen.get(other, 0) < version]


class TestCLUSTER_04_AsksItself(SoundNodes):
    class double(Node):
        def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
            if previous_owner is not None:
                self.at(previous_owner)
            return super().claim(client_id, epoch, previous_owner)


class TestCLUSTER_05_DropsWhatNobodyGets(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            return node not in self.hub.nodes or super().push(node, batch)


class TestCLUSTER_05_NamesNobody(SoundNodes):
    class double(Node):
        def at(self, node: NodeIdentity) -> Node:
            try:
                return super().at(node)
            except NodeGone:
                raise NodeGone("no such node") from None


class TestCLUSTER_05_NamesItNotGone(SoundNodes):
    class double(Node):
        def at(self, node: NodeIdentity) -> Node:
            try:
                return super().at(node)
            except NodeGone as error:
                raise ServiceUnavailable(str(error)) from None


class TestCLUSTER_06_LeavesInSilence(SoundNodes):
    class double(Node):
        def leave(self, deadline_s: float) -> None:
            pass


class TestCLUSTER_07_StopsOnce(SoundNodes):
    class double(Node):
        def stop(self) -> None:
            assert self.me is not None
            super().stop()


class TestCLUSTER_08_PromisesWords(SoundNodes):
    class double(Node):
        guarantees = "everything"  # type: ignore[assignment]


class TestCLUSTER_09_CountsItselfTwice(SoundNodes):
    class double(Node):
        def members(self) -> Sequence[Member]:
            return [*super().members(), *(each for each in super().members() if each.node == self.me)]


class TestCLUSTER_10_LosesEnds(SoundNodes):
    class double(Node):
        def take_pushed(self, origin: Any, batch: bytes) -> None:
            super().take_pushed(origin, batch[:1000])


class TestCLUSTER_10_SaysItIsItsOwn(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any) -> None:
            super().take(self.me, batch, answer)


class TestCLUSTER_10_TakesAllForPushed(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any) -> None:
            super().take_pushed(origin, batch)
            answer.give(b"")


class TestCLUSTER_11_AnswersWhenItIsSent(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            super().deliver(node, batch, messages)
            return b""


class TestCLUSTER_11_AnswersByItself(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any) -> None:
            super().take(origin, batch, Answer())
            answer.give(b"")


class TestCLUSTER_12_TakesAFailureForDone(SoundNodes):
    class double(Node):
        def expect(self, node: NodeIdentity) -> Any:
            answer = super().expect(node)
            answer.fail = lambda error: answer.give(b"")  # type: ignore[method-assign]
            return answer


class TestCLUSTER_12_TakesAFailureForTheEnd(SoundNodes):
    class double(Node):
        def expect(self, node: NodeIdentity) -> Any:
            answer = super().expect(node)
            fail = answer.fail
            answer.fail = lambda error: fail(NodeGone(f"{node.name}: {error}"))  # type: ignore[method-assign]
            return answer


class TestCLUSTER_13_TellsOnlyWhatIsNew(SoundNodes):
    class double(Node):
        def tell_routes(self, other: Any, version: int, added: Any, removed: Any) -> None:
            super().tell_routes(other, version, added, ())


class TestCLUSTER_13_TellsTheLastFirst(SoundNodes):
    class double(Node):
        def pump(self) -> None:
            self.inbox.reverse()
            super().pump()


class TestCLUSTER_14_TellsWhoWasThere(SoundNodes):
    class double(Node):
        def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
            super().routes_update(version, added, ())


class TestCLUSTER_15_DoesNotWait(SoundNodes):
    class double(Node):
        def route_barrier(self, version: int, limit_s: float) -> Maybe[Sequence[NodeIdentity]]:
            return ()


class TestCLUSTER_16_NamesNoLaggards(SoundNodes):
    class double(Node):
        async def wait_for_routes(self, version: int, limit_s: float) -> Sequence[NodeIdentity]:
            await super().wait_for_routes(version, limit_s)
            return ()


class TestCLUSTER_16_WaitsForEver(SoundNodes):
    class double(Node):
        async def wait_for_routes(self, version: int, limit_s: float) -> Sequence[NodeIdentity]:
            return await super().wait_for_routes(version, 1e9)


class TestCLUSTER_17_DoesNotWaitForTheOwner(SoundNodes):
    class double(Node):
        def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> None:
            super().claim(client_id, epoch, previous_owner)


class TestCLUSTER_17_TellsNobody(SoundNodes):
    class double(Node):
        def let_go(self, client_id: str, epoch: int, owner: Any, answer: Any) -> None:
            answer.give()


class TestCLUSTER_18_WaitsForTheGone(SoundNodes):
    class double(Node):
        def claim(self, client_id: str, epoch: int, previous_owner: NodeIdentity | None) -> Maybe[None]:
            if previous_owner is None or previous_owner in self.hub.nodes:
                return super().claim(client_id, epoch, previous_owner)
            return self.expect(previous_owner)


class TestCLUSTER_19_HasNoCredit(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            return LinkState(0, 0, 0.0)


class TestCLUSTER_19_HasNoMeasure(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            self.at(node)
            return LinkState(CREDIT_BYTES, 0, float("nan"))


class TestCLUSTER_20_RaisesWhenItIsFull(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            if self.at(node).room() < len(batch):
                raise ServiceUnavailable(f"the link to {node.name} is full")
            return super().push(node, batch)


class TestCLUSTER_20_SendsWhatItRefused(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other = self.at(node)
            taken = super().push(node, batch)
            if not taken:
                other.pushed_bytes += len(batch)
                other.send(lambda: other.take_pushed(self.me, batch))
            return taken


class TestCLUSTER_20_DropsTheOldest(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other = self.at(node)
            if other.room() < len(batch) and other.inbox:
                other.inbox.popleft()
                return False
            return super().push(node, batch)


class TestCLUSTER_20_StillHasCredit(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            self.at(node)
            return LinkState(CREDIT_BYTES, 0, 0.0)


class TestCLUSTER_21_AnotherWayOvertakes(SoundNodes):
    class double(Node):
        def push(self, node: NodeIdentity, batch: bytes) -> bool:
            other = self.at(node)
            other.pushed_bytes += len(batch)
            self.hub.clock.later(0.0005, lambda: other.take_pushed(self.me, batch))
            return True


class TestCLUSTER_22_GoesUnnoticed(SoundNodes):
    class double(Node):
        def become(self, member: Member) -> None:
            if member.state is MemberState.UP:
                super().become(member)

        def lose(self, node: NodeIdentity) -> None:
            self.known.pop(node, None)


class TestCLUSTER_22_StaysAMember(SoundNodes):
    class double(Node):
        def leave(self, deadline_s: float) -> None:
            pass

        def lose(self, node: NodeIdentity) -> None:
            pass


class TestCLUSTER_23_WaitsForTheGone(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            return super().deliver(node, batch, messages) if node in self.hub.nodes else self.expect(node)


class TestCLUSTER_24_CommitsEachChunk(SoundNodes):
    class double(Node):
        def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
            return _Eager(super().hand_off(client_id, epoch, to))


class _Eager(HandOff):
    def __init__(self, moving: Any) -> None:
        self.moving: HandOff = moving

    def chunk(self, data: bytes) -> Maybe[None]:
        self.moving.chunk(data)
        return self.moving.commit()

    def commit(self) -> Maybe[None]:
        return self.moving.commit()

    def abort(self) -> Maybe[None]:
        return self.moving.abort()


class TestCLUSTER_24_CommitsWhatIsAborted(SoundNodes):
    class double(Node):
        def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
            return _Stubborn(super().hand_off(client_id, epoch, to))


class _Stubborn(_Eager):
    def chunk(self, data: bytes) -> Maybe[None]:
        return self.moving.chunk(data)

    def abort(self) -> Maybe[None]:
        return self.moving.commit()


class TestCLUSTER_25_ForgetsTheMethod(SoundNodes):
    class double(Node):
        def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
            return super().ask(node, "", data, limit_s)


class TestCLUSTER_26_WaitsForEver(SoundNodes):
    class double(Node):
        def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
            return super().ask(node, method, data, 1e9)


class TestCLUSTER_26_AnswersNothing(SoundNodes):
    class double(Node):
        def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
            answer: Any = super().ask(node, method, data, limit_s)
            answer.fail = lambda error: answer.give(b"")
            return answer  # type: ignore[no-any-return]


class TestCLUSTER_27_LosesPatience(SoundNodes):
    class double(Node):
        def deliver(self, node: NodeIdentity, batch: bytes, messages: int) -> Any:
            answer = super().deliver(node, batch, messages)
            self.hub.clock.later(60.0, lambda: answer.give(b""))
            return answer


class TestCLUSTER_28_WaitsForTheDead(SoundNodes):
    class double(Node):
        def lose(self, node: NodeIdentity) -> None:
            self.waiting.clear()
            super().lose(node)


class TestCLUSTER_28_FailsForNoReason(SoundNodes):
    class double(Node):
        def lose(self, node: NodeIdentity) -> None:
            for answer in self.waiting.pop(node, ()):
                answer.fail(ServiceUnavailable(f"node {node.name} did not answer"))
            super().lose(node)


class TestCLUSTER_29_TakesNoiseForCommitted(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any) -> None:
            assert self.listener is not None
            try:
                self.listener.received(origin, batch, True)
            except MalformedBatch:
                answer.give(b"wrong")
            else:
                answer.give(b"")


class TestCLUSTER_30_IsUpToOthersTooSoon(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
            super().start(node, listener)
            for other in self.others():
                other.become(Member(node, MemberState.UP))


class TestCLUSTER_30_HidesItsRoutes(SoundNodes):
    class double(Node):
        def up(self) -> None:
            assert self.me is not None
            self.inbox.clear()
            for other in self.others():
                other.inbox.clear()
                other.become(Member(self.me, MemberState.UP))
            self.become(Member(self.me, MemberState.UP))


class TestCLUSTER_31_KeepsTheFirst(SoundNodes):
    class double(Node):
        def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
            new = [each for each in added if each.key not in self.routes]
            super().routes_update(version, new, removed)


class TestCLUSTER_32_HearsLater(SoundNodes):
    class double(Node):
        def tell_now(
            self, other: Node, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
        ) -> None:
            tell_now = super().tell_now
            self.hub.clock.later(5.0, lambda: tell_now(other, version, added, removed))


class TestCLUSTER_33_KeepsTheReasonBack(SoundNodes):
    class double(Node):
        def reply(self, origin: Any, method: str, data: bytes, answer: Any) -> None:
            answer.fail(ServiceUnavailable("no"))


class TestCLUSTER_34_KnowsAnOwnerOfNothing(SoundNodes):
    class double(Node):
        def locate(self, client_id: str) -> Maybe[Located | None]:
            return Located(self.me, 1)


class TestCLUSTER_35_StaysInTouch(SoundNodes):
    class double(Node):
        def stop(self) -> None:
            if self.me is not None:
                for other in self.others():
                    other.lose(self.me)


class TestCLUSTER_36_MixesAnswersUp(SoundNodes):
    class double(Node):
        def take(self, origin: Any, batch: bytes, answer: Any) -> None:
            assert self.listener is not None
            given = self.listener.received(origin, batch, True)
            shared = getattr(self, "shared", None) or []
            self.shared = [*shared, answer]
            self.hub.run(self.answer_next(given))

        async def answer_next(self, given: Any) -> None:
            value = await given if isinstance(given, Awaitable) else given
            self.shared.pop(0).give(value)
