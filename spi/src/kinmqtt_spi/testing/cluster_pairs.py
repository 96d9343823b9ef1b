"""The contract of a cluster backend: members, routes, claims, hand-off and questions between two nodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator
from contextlib import suppress
from typing import Any, Final

import pytest

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import ClusterBackend, Located, Member, MemberState, RouteChange
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.cluster_base import (
    LIMIT_S,
    HandOffState,
    Late,
    News,
    NodesContract,
    Pair,
    failing,
    is_up,
    recording,
    wait,
)
from kinmqtt_spi.testing.driving import Driver, resolved
from kinmqtt_spi.values import Maybe

CHUNKS: Final = (b"one ", b"", b"\0two ", bytes(100_000))
LONG_S: Final = 30.0
"""The limit of a question that is not expected to reach it."""


class PairsContract(NodesContract):
    """What two nodes know of each other."""

    @behaviour("CLUSTER-09", needs="has_peers")
    def test_cluster_09_both_know_both(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Each node has both among its members, once, and was notified that the other is UP."""
        pair = self._pair(cluster_backend, drive)

        for backend in (pair.here, pair.there):
            assert sorted(each.node.name for each in backend.members()) == sorted((HERE.name, THERE.name))
        assert pair.news.states_of(THERE)[-1] is MemberState.UP
        assert pair.others.states_of(HERE)[-1] is MemberState.UP
        self._end(pair, drive)

    @behaviour("CLUSTER-13", needs="has_peers")
    def test_cluster_13_routes_are_told_with_versions(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """The other node gets this node's routes, in the order of their versions, with QoS and weight."""
        pair = self._pair(cluster_backend, drive)
        kept, gone = RouteChange("a/#", "group", qos=0, weight=3), RouteChange("b")
        pair.here.routes_update(1, [kept, gone], [])
        pair.here.routes_update(2, [RouteChange("c", qos=1)], [gone])
        wait(lambda: any(version == 2 for _, version, _, _ in pair.others.routes), drive)

        versions = [version for node, version, _, _ in pair.others.routes if node == HERE]
        assert pair.others.routes_of(HERE) == {kept, RouteChange("c", qos=1)}
        assert versions == sorted(versions)
        assert pair.news.routes_of(HERE) == set()
        self._end(pair, drive)

    @behaviour("CLUSTER-14", needs="has_peers")
    def test_cluster_14_who_comes_later_learns_routes(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A node that joins later gets the current routes, and no others."""
        news = self._started(cluster_backend, drive)
        cluster_backend.routes_update(1, [RouteChange("a"), RouteChange("b")], [])
        cluster_backend.routes_update(2, [], [RouteChange("a")])
        pair = Pair(cluster_backend, self.peer(cluster_backend), news, News())
        drive(pair.there.start(THERE, pair.others))
        wait(lambda: bool(pair.others.routes), drive)

        assert pair.others.routes_of(HERE) == {RouteChange("b")}
        assert pair.others.routes[-1][1] == 2
        self._end(pair, drive)

    @behaviour("CLUSTER-15", needs="has_peers")
    def test_cluster_15_behind_a_barrier_all_know(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A barrier that returns no laggards completes when the other node has the routes of that version."""
        pair = self._pair(cluster_backend, drive)
        pair.here.routes_update(1, [RouteChange("a")], [])

        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        assert pair.others.routes_of(HERE) == {RouteChange("a")}
        self._end(pair, drive)

    @behaviour("CLUSTER-16", needs="can_stall")
    def test_cluster_16_a_barrier_names_laggards(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A barrier waits no longer than its limit, and returns the nodes that do not have the routes by then."""
        pair = self._pair(cluster_backend, drive)
        go_on = self.stall(pair.there)
        pair.here.routes_update(1, [RouteChange("a")], [])

        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == [THERE]
        go_on()
        wait(lambda: bool(pair.others.routes_of(HERE)), drive)
        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        self._end(pair, drive)

    @behaviour("CLUSTER-17", needs="has_peers")
    def test_cluster_17_the_owner_before_lets_go_first(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A claim notifies the previous owner, and completes only when that one has released the client id."""
        pair = self._pair(cluster_backend, drive)
        events: list[str] = []
        pair.others.release = lambda: Late(recording(events, "released", None))

        drive(pair.here.claim("client", 7, THERE))
        events.append("answered")

        assert pair.others.claims == [("client", 7, HERE)]
        assert events == ["released", "answered"]
        assert pair.news.claims == []
        self._end(pair, drive)

    @behaviour("CLUSTER-18", needs="has_peers")
    def test_cluster_18_who_is_gone_holds_nothing(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A claim completes if the previous owner has left."""
        pair = self._pair(cluster_backend, drive)
        self._gone(pair, drive)

        drive(pair.here.claim("client", 7, THERE))
        drive(pair.here.stop())

    @behaviour("CLUSTER-42", needs="has_peers")
    def test_cluster_42_a_leaving_node_still_serves(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """After ``leaving`` a node is a member, and batches and questions reach it and come from it as before."""
        pair = self._pair(cluster_backend, drive)
        drive(pair.there.leaving())
        pair.others.commit = lambda batch: b"committed"
        pair.news.commit = lambda batch: b"committed too"

        assert drive(pair.here.deliver(THERE, b"to it", 1)) == b"committed"
        assert drive(pair.there.deliver(HERE, b"from it", 1)) == b"committed too"
        assert any(each.node == THERE for each in pair.here.members())
        self._end(pair, drive)

    @behaviour("CLUSTER-22", needs="has_peers")
    def test_cluster_22_who_leaves_is_missed(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """When a node leaves, the other is notified, and does not have it among the reachable members that are UP."""
        pair = self._pair(cluster_backend, drive)
        told = len(pair.news.members)
        self._gone(pair, drive)

        assert any(each.node == THERE for each in pair.news.members[told:])
        assert is_up(pair.here, HERE)
        drive(pair.here.stop())

    @behaviour("CLUSTER-24", needs="has_peers")
    def test_cluster_24_a_session_moves_whole(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A hand-off arrives with its client id, epoch and node; its chunks arrive as they were sent, in order.

        The new owner has nothing until the commit, and nothing after an abort.
        """
        pair = self._pair(cluster_backend, drive)
        moving = drive(pair.here.hand_off("moving", 3, THERE))
        staying = drive(pair.here.hand_off("staying", 4, THERE))
        for chunk in CHUNKS:
            drive(moving.chunk(chunk))
            drive(staying.chunk(chunk))
        before = {each.state for each in pair.others.hand_offs}
        drive(moving.commit())
        drive(staying.abort())
        wait(lambda: all(each.state is not HandOffState.OPEN for each in pair.others.hand_offs), drive)

        assert before <= {HandOffState.OPEN}
        received = {each.client_id: each for each in pair.others.hand_offs}
        assert received["moving"].state is HandOffState.COMMITTED
        assert tuple(received["moving"].chunks) == CHUNKS
        assert (received["moving"].epoch, received["moving"].origin) == (3, HERE)
        assert "staying" not in received or received["staying"].state is HandOffState.ABORTED
        self._end(pair, drive)

    @behaviour("CLUSTER-25", needs="has_peers")
    def test_cluster_25_a_question_is_answered(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A request reaches the other core, and returns its answer to that method and data, now or later."""
        pair = self._pair(cluster_backend, drive)
        asked = [("a", b"\0"), ("bä", b""), ("late", b"\xff" * 100_000)]

        def answer(method: str, data: bytes) -> Maybe[bytes]:
            return Late(lambda: data + b"!") if method == "late" else method.encode() + b":" + data

        pair.others.answer = answer
        answers = [drive(pair.here.ask(THERE, method, data, LONG_S)) for method, data in asked]

        assert answers == [b"a:\0", "bä:".encode(), b"\xff" * 100_000 + b"!"]
        assert pair.others.questions == [(HERE, method, data) for method, data in asked]
        assert pair.news.questions == []
        self._end(pair, drive)

    @behaviour("CLUSTER-26", needs="can_stall")
    def test_cluster_26_a_question_has_an_end(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request without an answer fails with ServiceUnavailable after its limit."""
        pair = self._pair(cluster_backend, drive)
        go_on = self.stall(pair.there)
        begun = clock.monotonic()

        with pytest.raises(ServiceUnavailable):
            drive(pair.here.ask(THERE, "method", b"", LIMIT_S))

        assert clock.monotonic() - begun <= LIMIT_S + 1
        go_on()
        self._end(pair, drive)

    @behaviour("CLUSTER-33", needs="has_peers")
    def test_cluster_33_others_see_it_up_when_it_is(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """For other nodes a node is JOINING until its ``up``, and UP afterwards."""
        pair = self._joining(cluster_backend, drive)
        drive(pair.there.up())
        drive(self._pause(clock, 1.0))
        told = pair.others.states_of(HERE)
        member = [each for each in pair.there.members() if each.node == HERE]
        drive(pair.here.up())
        wait(lambda: is_up(pair.there, HERE), drive)

        assert MemberState.UP not in told
        assert member == [Member(HERE, MemberState.JOINING)]
        assert pair.others.states_of(HERE)[-1] is MemberState.UP
        self._end(pair, drive)

    @behaviour("CLUSTER-34", needs="has_peers")
    def test_cluster_34_routes_come_before_up(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """When ``up`` completes, the other node has the routes that were announced before.

        It has them before it is notified that this node is UP.
        """
        pair = self._joining(cluster_backend, drive)
        drive(pair.there.up())
        routes = {RouteChange("a"), RouteChange("b/#", "group", weight=0)}
        pair.here.routes_update(1, list(routes), [])
        drive(pair.here.up())
        known = pair.others.routes_of(HERE)
        wait(lambda: is_up(pair.there, HERE), drive)

        assert known == routes
        assert pair.others.routes_at_up[HERE] == routes
        self._end(pair, drive)

    @behaviour("CLUSTER-35", needs="has_peers")
    def test_cluster_35_a_route_is_replaced(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A route that is announced again, with another QoS or weight, replaces the one before.

        It is removed by its filter and group, whatever its QoS and weight.
        """
        pair = self._pair(cluster_backend, drive)
        first = [RouteChange("a", qos=2), RouteChange("a", "group", weight=1)]
        again = [RouteChange("a", qos=0), RouteChange("a", "group", qos=1, weight=4)]
        pair.here.routes_update(1, first, [])
        pair.here.routes_update(2, again, [])
        drive(pair.here.route_barrier(2, LIMIT_S))
        replaced = pair.others.routes_of(HERE)
        pair.here.routes_update(3, [], [RouteChange("a", qos=1)])
        drive(pair.here.route_barrier(3, LIMIT_S))

        assert replaced == set(again)
        assert pair.others.routes_of(HERE) == {again[1]}
        self._end(pair, drive)

    @behaviour("CLUSTER-36", needs="has_peers")
    def test_cluster_36_a_new_node_knows_all_routes(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """When ``start`` completes, a new node knows the members and their routes.

        The first change that it gets of a node has all of its routes, each once.
        """
        news = self._started(cluster_backend, drive)
        many = [RouteChange(f"devices/{number}", qos=number % 3) for number in range(1000)]
        cluster_backend.routes_update(1, [RouteChange("a", qos=0), *many], [])
        cluster_backend.routes_update(2, [RouteChange("a", qos=1)], many[:1])
        pair = Pair(cluster_backend, self.peer(cluster_backend), news, News())
        drive(pair.there.start(THERE, pair.others))
        members = [each for each in pair.there.members() if each.node == HERE]
        changes = [change for change in pair.others.routes if change[0] == HERE]

        assert members == [Member(HERE, MemberState.UP)]
        assert [(version, len(added), removed) for _, version, added, removed in changes] == [(2, len(many), ())]
        added = changes[0][2]
        assert set(added) == {RouteChange("a", qos=1), *many[1:]}
        self._end(pair, drive)

    @behaviour("CLUSTER-37", needs="has_peers")
    def test_cluster_37_a_refused_question_fails_at_once(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request whose listener raises, whatever error, fails with ServiceUnavailable before its limit.

        Later requests are answered.
        """
        pair = self._pair(cluster_backend, drive)
        for error in (ServiceUnavailable("no such method"), ValueError("a defect of the core")):
            for pair.others.answer in _refusing(error):
                begun = clock.monotonic()
                with pytest.raises(ServiceUnavailable):
                    drive(pair.here.ask(THERE, "method", b"", LONG_S))
                assert clock.monotonic() - begun < LONG_S

        pair.others.answer = lambda method, data: b"answer"
        assert drive(pair.here.ask(THERE, "method", b"", LONG_S)) == b"answer"
        self._end(pair, drive)

    @behaviour("CLUSTER-38", needs="has_peers")
    def test_cluster_38_a_hand_off_ends_at_the_new_owner(
        self, cluster_backend: ClusterBackend, drive: Driver
    ) -> None:
        """The commit of a hand-off completes when the new owner has committed the session, and fails if it can't."""
        pair = self._pair(cluster_backend, drive)
        events: list[str] = []
        pair.others.complete = lambda: Late(recording(events, "committed", None))
        moving = drive(pair.here.hand_off("moving", 3, THERE))
        drive(moving.chunk(b"state"))
        drive(moving.commit())
        events.append("answered")

        pair.others.complete = lambda: Late(failing(ServiceUnavailable("the disk is full")))
        refused = drive(pair.here.hand_off("refused", 4, THERE))
        drive(refused.chunk(b"state"))
        with pytest.raises(ServiceUnavailable):
            drive(refused.commit())
        assert events == ["committed", "answered"]
        self._end(pair, drive)

    @behaviour("CLUSTER-40", needs="has_peers")
    def test_cluster_40_an_owner_is_found_from_everywhere(
        self, cluster_backend: ClusterBackend, drive: Driver
    ) -> None:
        """When a claim has ended, ``locate`` returns its owner on every node, or None on every node."""
        pair = self._pair(cluster_backend, drive)
        nodes = (pair.here, pair.there)
        floor = drive(pair.here.locate("client"))
        epoch = 1 if floor is None else floor.epoch + 1
        drive(pair.here.claim("client", epoch, None))
        pair.news.owns.append(("client", epoch))
        pair.here.register("client", epoch)
        pair.here.end_claim("client")
        first = [self._located(backend, drive) for backend in nodes]
        located = drive(pair.there.locate("client"))
        drive(pair.there.claim("client", epoch + 1, HERE))
        pair.news.owns.clear()
        pair.others.owns.append(("client", epoch + 1))
        pair.there.register("client", epoch + 1)
        pair.there.end_claim("client")
        second = [self._located(backend, drive) for backend in nodes]

        if floor is None:
            assert [*first, located, *second] == [None] * 5
        else:
            assert [each.owner for each in (*first, located, *second) if each] == [HERE, HERE, HERE, THERE, THERE]
            assert all(each.epoch >= epoch for each in (*first, located) if each)
            assert all(each.epoch >= epoch + 1 for each in second if each)
        self._end(pair, drive)

    @behaviour("CLUSTER-43", needs="has_peers")
    def test_cluster_43_one_claims_at_a_time(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Where ``locate`` returns an owner, it returns elsewhere only when that claim has ended."""
        pair = self._pair(cluster_backend, drive)
        first = drive(pair.here.locate("client"))
        events: list[str] = []
        epoch = 1 if first is None else first.epoch + 1

        def end(method: str, data: bytes) -> bytes:
            events.append("ended")
            pair.news.owns.append(("client", epoch))
            pair.here.register("client", epoch)
            pair.here.end_claim("client")
            return b""

        pair.others.answer = end
        works: list[Maybe[Any]] = [
            _Noted(pair.there.locate("client"), events),
            pair.here.ask(THERE, "method", b"", LONG_S),
        ]
        second, _ = drive.together(works)

        if first is not None:
            assert events == ["ended", "located"]
            assert second is not None
            assert second.owner == HERE
            assert second.epoch >= epoch
        pair.there.end_claim("client")
        self._end(pair, drive)

    @staticmethod
    def _located(backend: ClusterBackend, drive: Driver) -> Located | None:
        located = drive(backend.locate("client"))
        backend.end_claim("client")
        return located

    @behaviour("CLUSTER-41", needs="has_peers")
    def test_cluster_41_a_stopped_node_hears_nothing(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """When ``stop`` has completed, the listener gets no batch, question, route or other report any more."""
        pair = self._pair(cluster_backend, drive)
        pair.here.push(THERE, b"pushed")
        waited: list[Maybe[Any]] = [
            pair.here.deliver(THERE, b"delivered", 1),
            pair.here.ask(THERE, "method", b"", LIMIT_S),
            pair.here.claim("client", 1, THERE),
        ]
        pair.here.routes_update(1, [RouteChange("a")], [])
        drive(pair.there.leave(LIMIT_S))
        drive(pair.there.stop())
        heard = pair.others.reports
        drive(self._pause(clock, 1.0))

        assert pair.others.reports == heard
        for answer in waited:
            with suppress(ServiceUnavailable):
                drive(answer)
        assert pair.others.reports == heard
        drive(pair.here.stop())


def _refusing(error: Exception) -> list[Callable[[str, bytes], Maybe[bytes]]]:
    """Return answers that raise ``error``, at once and later."""
    fail = failing(error)
    return [lambda method, data: fail(), lambda method, data: Late(fail)]


class _Noted(Awaitable[Any]):
    """Notes when an answer is available."""

    def __init__(self, answer: Maybe[Any], events: list[str]) -> None:
        self._answer = answer
        self._events = events

    def __await__(self) -> Generator[Any, Any, Any]:
        result = yield from resolved(self._answer).__await__()
        self._events.append("located")
        return result
