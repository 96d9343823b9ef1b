"""Cluster backends that break one promise each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterListener, HandOff, LinkState, Member, MemberState, RouteChange
from kinmqtt_spi.testing.cluster import ClusterBackendContract
from kinmqtt_spi.values import Maybe, Message, NodeIdentity
from spi_harness.two_nodes import CREDIT, Hub, Moving, Node


class SoundNodes(ClusterBackendContract):
    """``double`` is the backend of both nodes, which breaks nothing here."""

    has_peers = can_stall = hands_off = asks = True
    double: type[Node] = Node

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> Node:
        return self.double(Hub(clock))

    def peer(self, cluster_backend: Any) -> Node:
        return self.double(cluster_backend.hub)

    def stall(self, cluster_backend: Any) -> Callable[[], object]:
        stop: Callable[[], object] = cluster_backend.stall()
        return stop

    def handed_off(self, cluster_backend: Any) -> Mapping[str, bytes]:
        handed: Mapping[str, bytes] = cluster_backend.handed
        return handed

    def answering(self, cluster_backend: Any, answer: Callable[[str, bytes], bytes]) -> None:
        cluster_backend.answer = answer


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
        def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
            if node in self.hub.nodes:
                super().forward(node, messages)


class TestCLUSTER_05_NamesNobody(SoundNodes):
    class double(Node):
        def at(self, node: NodeIdentity) -> Node:
            try:
                return super().at(node)
            except ServiceUnavailable:
                raise ServiceUnavailable("no such node") from None


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


class TestCLUSTER_10_LosesProperties(SoundNodes):
    class double(Node):
        def take(self, origin: Any, messages: Sequence[Message], answer: Any) -> None:
            super().take(origin, [each.replace(retain=False) for each in messages], answer)


class TestCLUSTER_10_SaysItIsItsOwn(SoundNodes):
    class double(Node):
        def take(self, origin: Any, messages: Sequence[Message], answer: Any) -> None:
            super().take(self.me, messages, answer)


class TestCLUSTER_11_AnswersWhenItIsSent(SoundNodes):
    class double(Node):
        def forward_acked(self, node: NodeIdentity, messages: Sequence[Message]) -> Any:
            super().forward_acked(node, messages)


class TestCLUSTER_11_AnswersWhenItArrives(SoundNodes):
    class double(Node):
        def take(self, origin: Any, messages: Sequence[Message], answer: Any) -> None:
            super().take(origin, messages, None)
            if answer is not None:
                answer.give()


class TestCLUSTER_12_TakesAFailureForDone(SoundNodes):
    class double(Node):
        def expect(self, node: NodeIdentity) -> Any:
            answer = super().expect(node)
            answer.fail = lambda error: answer.give()  # type: ignore[method-assign]
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
            return LinkState(CREDIT, 0, float("nan"))


class TestCLUSTER_20_RaisesWhenItIsFull(SoundNodes):
    class double(Node):
        def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
            if len(self.at(node).inbox) >= CREDIT:
                raise ServiceUnavailable(f"the link to {node.name} is full")
            super().forward(node, messages)


class TestCLUSTER_20_TakesEverything(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            return LinkState(CREDIT, len(self.at(node).inbox), 0.0)

        def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
            other = self.at(node)
            other.send(lambda: other.take(self.me, messages, None))


class TestCLUSTER_20_DropsTheOldest(SoundNodes):
    class double(Node):
        def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
            other = self.at(node)
            if len(other.inbox) >= CREDIT:
                other.inbox.popleft()
            super().forward(node, messages)


class TestCLUSTER_21_AnotherWayOvertakes(SoundNodes):
    class double(Node):
        def forward(self, node: NodeIdentity, messages: Sequence[Message]) -> None:
            other = self.at(node)
            self.hub.clock.later(0.0005, lambda: other.take(self.me, messages, None))


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
        def forward_acked(self, node: NodeIdentity, messages: Sequence[Message]) -> Any:
            return super().forward_acked(node, messages) if node in self.hub.nodes else self.expect(node)


class TestCLUSTER_24_CommitsEachChunk(SoundNodes):
    class double(Node):
        def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
            return _Eager(self.at(to), client_id)


class _Eager(Moving):
    def chunk(self, data: bytes) -> None:
        super().chunk(data)
        self.commit()


class TestCLUSTER_24_CommitsWhatIsAborted(SoundNodes):
    class double(Node):
        def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> Maybe[HandOff]:
            return _Stubborn(self.at(to), client_id)


class _Stubborn(Moving):
    def abort(self) -> None:
        self.commit()


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
