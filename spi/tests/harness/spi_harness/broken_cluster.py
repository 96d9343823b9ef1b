"""Cluster backends that break one promise each: members, routes, claims, hand-off and questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from kinmqtt_spi.errors import NodeGone
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
from spi_harness.two_nodes import Answer, Frame, Hub, Moving, Node


class SoundNodes(ClusterBackendContract):
    """``double`` is the backend of both nodes, which breaks nothing here."""

    has_peers = can_stall = can_cut = True
    double: type[Node] = Node

    @pytest.fixture
    def cluster_backend(self, clock: TurnableClock) -> Node:
        return self.double(Hub(clock))

    def peer(self, cluster_backend: Any) -> Node:
        return self.double(cluster_backend.hub)

    def stall(self, cluster_backend: Any) -> Callable[[], object]:
        stop: Callable[[], object] = cluster_backend.stall()
        return stop

    def cut(self, cluster_backend: Any) -> None:
        cluster_backend.cut()


class TestCLUSTER_01_IsUpInSilence(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
            return super().start(node, _Deaf(listener))


class _Deaf:
    def __init__(self, listener: ClusterListener) -> None:
        self.listener = listener

    def __getattr__(self, name: str) -> Any:
        return getattr(self.listener, name)

    def member_changed(self, member: Member) -> None:
        pass


class TestCLUSTER_01_IsUpWhenItStarts(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> Maybe[None]:
            started = super().start(node, listener)
            self.spread(MemberState.UP)
            return started


class TestCLUSTER_02_CountsOthersOnly(SoundNodes):
    class double(Node):
        def members(self) -> Sequence[Member]:
            return [each for each in super().members() if each.node != self.me]


class TestCLUSTER_02_CountsItselfAsUp(SoundNodes):
    class double(Node):
        def members(self) -> Sequence[Member]:
            return [Member(each.node, MemberState.UP) for each in super().members()]


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
            return node in self.hub.nodes and super().push(node, batch)


class TestCLUSTER_05_NamesNobody(SoundNodes):
    class double(Node):
        def at(self, node: NodeIdentity) -> Node:
            try:
                return super().at(node)
            except NodeGone:
                raise NodeGone("no such node") from None


class TestCLUSTER_05_LinksToNobody(SoundNodes):
    class double(Node):
        def link(self, node: NodeIdentity) -> LinkState:
            return super().link(node) if node in self.hub.nodes else LinkState(0, 0, 0.0)


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


class TestCLUSTER_13_TellsOnlyWhatIsNew(SoundNodes):
    class double(Node):
        def tell_routes(self, other: Any, version: int, added: Any, removed: Any) -> None:
            super().tell_routes(other, version, added, ())


class TestCLUSTER_13_TellsTheLastFirst(SoundNodes):
    class double(Node):
        def pump(self) -> None:
            self.inbox.reverse()
            super().pump()


class TestCLUSTER_13_TellsFiltersOnly(SoundNodes):
    class double(Node):
        def tell_routes(self, other: Any, version: int, added: Any, removed: Any) -> None:
            filters = [RouteChange(each.filter, each.share_group) for each in added]
            super().tell_routes(other, version, filters, removed)


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


class TestCLUSTER_22_GoesUnnoticed(SoundNodes):
    class double(Node):
        def become(self, member: Member) -> None:
            if member.state in (MemberState.JOINING, MemberState.UP):
                super().become(member)

        def lose(self, node: NodeIdentity) -> None:
            self.known.pop(node, None)


class TestCLUSTER_22_StaysAMember(SoundNodes):
    class double(Node):
        def leave(self, deadline_s: float) -> None:
            pass

        def lose(self, node: NodeIdentity) -> None:
            pass


class TestCLUSTER_24_CommitsEachChunk(SoundNodes):
    class double(Node):
        def moving(self, to: Node) -> Moving:
            return _Eager(self, to)


class _Eager(Moving):
    def chunk(self, data: bytes) -> Any:
        super().chunk(data)
        return self.commit()


class TestCLUSTER_24_CommitsWhatIsAborted(SoundNodes):
    class double(Node):
        def moving(self, to: Node) -> Moving:
            return _Stubborn(self, to)


class _Stubborn(Moving):
    def abort(self) -> Any:
        return self.commit()


class TestCLUSTER_24_JoinsChunks(SoundNodes):
    class double(Node):
        def moving(self, to: Node) -> Moving:
            return _Joining(self, to)


class _Joining(Moving):
    def __init__(self, origin: Node, to: Node) -> None:
        super().__init__(origin, to)
        self.state = b""

    def chunk(self, data: bytes) -> None:
        self.state += data

    def commit(self) -> Any:
        super().chunk(self.state)
        return super().commit()


class TestCLUSTER_24_ForgetsTheEpoch(SoundNodes):
    class double(Node):
        async def hand_off(self, client_id: str, epoch: int, to: NodeIdentity) -> HandOff:
            return await super().hand_off(client_id, 0, to)


class TestCLUSTER_25_ForgetsTheMethod(SoundNodes):
    class double(Node):
        def ask(self, node: NodeIdentity, method: str, data: bytes, limit_s: float) -> Maybe[bytes]:
            return super().ask(node, "", data, limit_s)


class TestCLUSTER_25_AnswersForTheCore(SoundNodes):
    class double(Node):
        def reply(self, origin: Any, method: str, data: bytes, answer: Answer) -> None:
            answer.give(b"")


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


class TestCLUSTER_33_CountsTheNewAsUp(SoundNodes):
    class double(Node):
        def meet(self, other: Node) -> None:
            super().meet(other)
            assert other.me is not None
            self.become(Member(other.me, MemberState.UP))


class TestCLUSTER_33_IsUpForItselfOnly(SoundNodes):
    class double(Node):
        async def up(self) -> None:
            assert self.me is not None
            self.become(Member(self.me, MemberState.UP))


class TestCLUSTER_34_IsUpAtOnce(SoundNodes):
    class double(Node):
        async def up(self) -> None:
            self.spread(MemberState.UP)


class TestCLUSTER_34_TellsRoutesAfterwards(SoundNodes):
    class double(Node):
        async def up(self) -> None:
            self.spread(MemberState.UP)
            await self.until(lambda: not self.lagging(self.version))


class TestCLUSTER_35_KeepsTheFirst(SoundNodes):
    class double(Node):
        def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
            super().routes_update(version, [each for each in added if each.key not in self.routes], removed)


class TestCLUSTER_35_RemovesWhatIsEqual(SoundNodes):
    class double(Node):
        def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
            super().routes_update(version, added, [each for each in removed if each in self.routes.values()])


class TestCLUSTER_36_StartsWithoutRoutes(SoundNodes):
    class double(Node):
        def start(self, node: NodeIdentity, listener: ClusterListener) -> None:
            super().start(node, listener).close()  # type: ignore[union-attr]


class TestCLUSTER_36_TellsRoutesOneByOne(SoundNodes):
    class double(Node):
        def tell_routes(self, other: Any, version: int, added: Any, removed: Any) -> None:
            for each in added:
                super().tell_routes(other, version, [each], ())
            super().tell_routes(other, version, (), removed)


class TestCLUSTER_36_TellsWhatWasReplaced(SoundNodes):
    class double(Node):
        def routes_update(self, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]) -> None:
            for each in added:
                if each.key in self.routes:
                    self.routes["replaced " + each.filter, None] = self.routes[each.key]
            super().routes_update(version, added, removed)


class TestCLUSTER_37_KeepsTheErrorToItself(SoundNodes):
    class double(Node):
        def reply(self, origin: Any, method: str, data: bytes, answer: Answer) -> None:
            unheard = Answer()
            unheard.give = answer.give  # type: ignore[method-assign]
            super().reply(origin, method, data, unheard)


class TestCLUSTER_37_FailsOnUnknownErrors(SoundNodes):
    class double(Node):
        def reply(self, origin: Any, method: str, data: bytes, answer: Answer) -> None:
            assert self.listener is not None
            answer.give(self.listener.asked(origin, method, data))


class TestCLUSTER_38_CommitsAtItsOwnEnd(SoundNodes):
    class double(Node):
        def moving(self, to: Node) -> Moving:
            return _Hasty(self, to)


class _Hasty(Moving):
    def commit(self) -> None:
        super().commit()


class TestCLUSTER_38_TakesAFailureForDone(SoundNodes):
    class double(Node):
        def moving(self, to: Node) -> Moving:
            return _Confident(self, to)


class _Confident(Moving):
    def step(self, call: Callable[[], Any]) -> Any:
        answer = super().step(call)
        answer.fail = lambda error: answer.give()
        return answer


class TestCLUSTER_39_ForgetsTheEpoch(SoundNodes):
    class double(Node):
        def release(self, client_id: str, epoch: int) -> None:
            del self.hub.register[client_id]


class TestCLUSTER_39_OwnsTheUnclaimed(SoundNodes):
    class double(Node):
        def located(self, client_id: str) -> Located:
            return self.hub.register.get(client_id, Located(self.me, 0))


class TestCLUSTER_40_KnowsItsOwnOnly(SoundNodes):
    class double(Node):
        def located(self, client_id: str) -> Located:
            known = super().located(client_id)
            return known if known.owner == self.me else Located(None, 0)


class TestCLUSTER_40_KeepsTheFirstEpoch(SoundNodes):
    class double(Node):
        def register(self, client_id: str, epoch: int) -> None:
            before = self.hub.register.get(client_id)
            super().register(client_id, epoch if before is None else 0)


class TestCLUSTER_43_LetsAllClaim(SoundNodes):
    class double(Node):
        def locate(self, client_id: str) -> Maybe[Located | None]:
            super().locate(client_id)
            return self.located(client_id)


class TestCLUSTER_41_HearsWhatWasOnItsWay(SoundNodes):
    class double(Node):
        def stop(self) -> None:
            listener, inbox = self.listener, list(self.inbox)
            super().stop()
            self.listener = listener
            self.inbox.extend(inbox)


class TestCLUSTER_41_IsToldOfItself(SoundNodes):
    class double(Node):
        def stop(self) -> None:
            listener, me = self.listener, self.me
            super().stop()
            if listener is not None and me is not None:
                self.send(Frame(lambda: listener.member_changed(Member(me, MemberState.REMOVED))))


class TestCLUSTER_42_LeavesAtOnce(SoundNodes):
    class double(Node):
        def leaving(self) -> None:
            for other in self.others():
                if self.me is not None:
                    other.lose(self.me)
