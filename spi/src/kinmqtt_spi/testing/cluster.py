"""The contract of a cluster backend: alone and with a second node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import pytest
from attrs import frozen

from kinmqtt_spi.errors import ServiceUnavailable, SpiError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.cluster import (
    ClusterBackend,
    Guarantee,
    LinkState,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, THERE, message
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import AsyncioDriver, Driver, NoAnswer, TurningDriver
from kinmqtt_spi.values import Commit, Maybe, Message, NodeIdentity, Publisher

NOWHERE: Final = NodeIdentity("nowhere", 0xBAD)
"""A node that is no member."""
LIMIT_S: Final = 2.0


class News:
    """A listener that collects reports, in order."""

    def __init__(self) -> None:
        self.messages: list[tuple[NodeIdentity, Message]] = []
        self.routes: list[tuple[NodeIdentity, int, tuple[RouteChange, ...], tuple[RouteChange, ...]]] = []
        self.members: list[Member] = []
        self.claims: list[tuple[str, int, NodeIdentity]] = []
        self.commit: Callable[[], Commit] = lambda: None
        """What :meth:`forwarded` answers."""
        self.release: Callable[[], Maybe[None]] = lambda: None
        """What :meth:`session_claimed` answers."""

    def forwarded(self, origin: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.messages += [(origin, each) for each in messages]
        return self.commit()

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.routes.append((node, version, tuple(added), tuple(removed)))

    def member_changed(self, member: Member) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.members.append(member)

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.claims.append((client_id, epoch, owner))
        return self.release()

    def routes_of(self, node: NodeIdentity) -> set[RouteChange]:
        """The routes of that node, after all reports."""
        wanted: set[RouteChange] = set()
        for _, _, added, removed in (told for told in self.routes if told[0] == node):
            wanted = (wanted | set(added)) - set(removed)
        return wanted


class Late(Awaitable[None]):
    """An answer that is available after a number of looks, and then appends to ``events``."""

    def __init__(self, events: list[str], error: Exception | None = None, looks: int = 100) -> None:
        self._events = events
        self._error = error
        self._looks = looks

    def __await__(self) -> Generator[Any, None, None]:
        for _ in range(self._looks):
            yield
        self._events.append("there")
        if self._error is not None:
            raise self._error


@frozen(slots=True)
class Pair:
    """Two connected backends: this node's and a peer's."""

    here: ClusterBackend
    there: ClusterBackend
    news: News
    """What this node was told."""
    others: News
    """What the peer was told."""


class ClusterBackendContract(Contract):
    """Override the fixture ``cluster_backend``: a backend that was not started."""

    has_peers = False
    """Whether the suite may have a second node: override :meth:`peer`."""
    can_stall = False
    """Whether the suite may keep what is on its way to a node from arriving: override :meth:`stall`."""
    hands_off = False
    """Whether the suite may see what was handed off to a node: override :meth:`handed_off`."""
    asks = False
    """Whether the suite may let a node's core answer questions: override :meth:`answering`."""
    pace_s = 0.01
    """By how much the clock goes between two looks at an answer."""

    @pytest.fixture
    def cluster_backend(self) -> ClusterBackend:
        """The backend under test, not started."""
        raise NotImplementedError(f"{type(self).__name__} does not override the fixture cluster_backend")

    @pytest.fixture
    def drive(self, clock: TurnableClock) -> Iterator[Driver]:
        """Waits for the backend's answers, and advances the clock meanwhile."""
        if self.reactor is None:
            yield TurningDriver(clock, lambda: clock.advance(self.pace_s))
            return
        driver = AsyncioDriver()
        yield driver
        driver.close()

    def peer(self, cluster_backend: ClusterBackend) -> ClusterBackend:
        """A second backend, not started, which finds the first when both are started."""
        raise NotImplementedError(f"{type(self).__name__} sets has_peers, and does not override peer")

    def stall(self, cluster_backend: ClusterBackend) -> Callable[[], object]:
        """Block all traffic to that node, undetected for now; return a call that unblocks it."""
        raise NotImplementedError(f"{type(self).__name__} sets can_stall, and does not override stall")

    def handed_off(self, cluster_backend: ClusterBackend) -> Mapping[str, bytes]:
        """The states that were completely handed off to that node, by client id."""
        raise NotImplementedError(f"{type(self).__name__} sets hands_off, and does not override handed_off")

    def answering(self, cluster_backend: ClusterBackend, answer: Callable[[str, bytes], bytes]) -> None:
        """Let that node's core answer requests with ``answer(method, data)``."""
        raise NotImplementedError(f"{type(self).__name__} sets asks, and does not override answering")

    # Alone

    @behaviour("CLUSTER-01")
    def test_cluster_01_it_is_told_when_it_is_up(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """When ``start`` completes, this node is UP, and the listener was notified."""
        news = News()
        drive(cluster_backend.start(HERE, news))

        assert _told(news, HERE)[-1:] == [MemberState.UP]
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-02")
    def test_cluster_02_it_is_a_member(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``members`` has this node, UP and reachable, once."""
        drive(cluster_backend.start(HERE, News()))

        assert [each for each in cluster_backend.members() if each.node == HERE] == [Member(HERE, MemberState.UP)]
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-03")
    def test_cluster_03_alone_no_route_is_waited_for(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Without other nodes a barrier has no laggards, and routes can be announced."""
        drive(cluster_backend.start(HERE, News()))
        cluster_backend.routes_update(1, [RouteChange("a/#"), RouteChange("b", "group")], [])
        cluster_backend.routes_update(2, [], [RouteChange("a/#")])

        assert list(drive(cluster_backend.route_barrier(2, LIMIT_S))) == []
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-04")
    def test_cluster_04_nobody_has_to_let_go(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A claim of a client id without an owner, or owned by an earlier process of this node, completes."""
        drive(cluster_backend.start(HERE, News()))
        for epoch, owner in enumerate((None, HERE, NodeIdentity(HERE.name, 0x01D)), 1):
            drive(cluster_backend.claim("client", epoch, owner))
            cluster_backend.release("client", epoch)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-05")
    def test_cluster_05_an_unknown_node_is_named(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Calls for a node that is no member raise ServiceUnavailable, which names that node."""
        drive(cluster_backend.start(HERE, News()))
        calls: list[Callable[[], object]] = [
            lambda: cluster_backend.forward(NOWHERE, [message()]),
            lambda: drive(cluster_backend.forward_acked(NOWHERE, [message(qos=1)])),
            lambda: cluster_backend.link(NOWHERE),
            lambda: drive(cluster_backend.hand_off("client", 1, NOWHERE)),
            lambda: drive(cluster_backend.ask(NOWHERE, "method", b"", LIMIT_S)),
        ]
        for call in calls:
            with pytest.raises(ServiceUnavailable) as raised:
                call()
            assert NOWHERE.name in str(raised.value)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-06")
    def test_cluster_06_leaving_is_told(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``leave`` notifies the listener that this node is LEAVING, and completes."""
        news = News()
        drive(cluster_backend.start(HERE, news))
        drive(cluster_backend.leave(LIMIT_S))

        assert MemberState.LEAVING in _told(news, HERE)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-07")
    def test_cluster_07_it_stops_again(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A second stop, or a stop without leaving, raises nothing, and nothing is reported any more."""
        news = News()
        drive(cluster_backend.start(HERE, news))
        drive(cluster_backend.stop())
        told = len(news.members)
        drive(cluster_backend.stop())

        assert len(news.members) == told

    @behaviour("CLUSTER-08")
    def test_cluster_08_it_says_what_it_promises(self, cluster_backend: ClusterBackend) -> None:
        """``guarantees`` has the backend's guarantees before it is started."""
        assert isinstance(cluster_backend.guarantees, Guarantee)

    # Two nodes

    @behaviour("CLUSTER-09", needs="has_peers")
    def test_cluster_09_both_know_both(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """Each node has both among its members, once, and was notified that the other is UP."""
        pair = self._pair(cluster_backend, drive, clock)

        for backend in (pair.here, pair.there):
            assert sorted(each.node.name for each in backend.members()) == sorted((HERE.name, THERE.name))
        assert _told(pair.news, THERE)[-1] is MemberState.UP
        assert _told(pair.others, HERE)[-1] is MemberState.UP
        self._end(pair, drive)

    @behaviour("CLUSTER-10", needs="has_peers")
    def test_cluster_10_messages_come_whole(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A forwarded message arrives unchanged, with the node that it comes from."""
        pair = self._pair(cluster_backend, drive, clock)
        sent = [
            message("ä/b", b"\0\xff", retain=True, properties=Properties(user_property=(("k", "v"), ("k", "w")))),
            message("c", b"", number=2, publisher=Publisher("client", "user")),
        ]
        pair.here.forward(THERE, sent)
        drive(pair.here.forward_acked(THERE, [message("d", qos=2, number=3)]))
        _wait(lambda: len(pair.others.messages) == 3, drive)

        assert pair.others.messages == [(HERE, each) for each in (*sent, message("d", qos=2, number=3))]
        assert pair.news.messages == []
        self._end(pair, drive)

    @behaviour("CLUSTER-11", needs="has_peers")
    def test_cluster_11_acknowledged_means_committed(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """``forward_acked`` completes only after the other node has committed the messages."""
        pair = self._pair(cluster_backend, drive, clock)
        events: list[str] = []
        pair.others.commit = lambda: Late(events)

        drive(pair.here.forward_acked(THERE, [message(qos=1)]))
        events.append("answered")

        assert events == ["there", "answered"]
        self._end(pair, drive)

    @behaviour("CLUSTER-12", needs="has_peers")
    def test_cluster_12_a_failed_commit_is_told(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """If the other node can't commit, ``forward_acked`` fails, and later messages are accepted again."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.others.commit = lambda: Late([], ServiceUnavailable("the disk is full"))
        with pytest.raises(SpiError):
            drive(pair.here.forward_acked(THERE, [message(qos=1)]))

        pair.others.commit = lambda: None
        drive(pair.here.forward_acked(THERE, [message(qos=1, number=2)]))
        self._end(pair, drive)

    @behaviour("CLUSTER-13", needs="has_peers")
    def test_cluster_13_routes_are_told_with_versions(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """The other node gets this node's routes, in the order of their versions."""
        pair = self._pair(cluster_backend, drive, clock)
        kept, gone = RouteChange("a/#", "group"), RouteChange("b")
        pair.here.routes_update(1, [kept, gone], [])
        pair.here.routes_update(2, [RouteChange("c")], [gone])
        _wait(lambda: any(version == 2 for _, version, _, _ in pair.others.routes), drive)

        versions = [version for node, version, _, _ in pair.others.routes if node == HERE]
        assert pair.others.routes_of(HERE) == {kept, RouteChange("c")}
        assert versions == sorted(versions)
        assert pair.news.routes_of(HERE) == set()
        self._end(pair, drive)

    @behaviour("CLUSTER-14", needs="has_peers")
    def test_cluster_14_who_comes_later_learns_routes(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A node that joins later gets the current routes, and no others."""
        news, others = News(), News()
        drive(cluster_backend.start(HERE, news))
        cluster_backend.routes_update(1, [RouteChange("a"), RouteChange("b")], [])
        cluster_backend.routes_update(2, [], [RouteChange("a")])
        there = self.peer(cluster_backend)
        drive(there.start(THERE, others))
        _wait(lambda: bool(others.routes), drive)

        assert others.routes_of(HERE) == {RouteChange("b")}
        assert others.routes[-1][1] == 2
        self._end(Pair(cluster_backend, there, news, others), drive)

    @behaviour("CLUSTER-15", needs="has_peers")
    def test_cluster_15_behind_a_barrier_all_know(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A barrier that returns no laggards completes when the other node has the routes of that version."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.here.routes_update(1, [RouteChange("a")], [])

        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        assert pair.others.routes_of(HERE) == {RouteChange("a")}
        self._end(pair, drive)

    @behaviour("CLUSTER-16", needs="can_stall")
    def test_cluster_16_a_barrier_names_laggards(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A barrier waits no longer than its limit, and returns the nodes that do not have the routes by then."""
        pair = self._pair(cluster_backend, drive, clock)
        go_on = self.stall(pair.there)
        pair.here.routes_update(1, [RouteChange("a")], [])

        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == [THERE]
        go_on()
        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        self._end(pair, drive)

    @behaviour("CLUSTER-17", needs="has_peers")
    def test_cluster_17_the_owner_before_lets_go_first(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A claim notifies the previous owner, and completes only when that one has released the client id."""
        pair = self._pair(cluster_backend, drive, clock)
        events: list[str] = []
        pair.others.release = lambda: Late(events)

        drive(pair.here.claim("client", 7, THERE))
        events.append("answered")

        assert pair.others.claims == [("client", 7, HERE)]
        assert events == ["there", "answered"]
        assert pair.news.claims == []
        self._end(pair, drive)

    @behaviour("CLUSTER-18", needs="has_peers")
    def test_cluster_18_who_is_gone_holds_nothing(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A claim completes if the previous owner has left."""
        pair = self._pair(cluster_backend, drive, clock)
        self._gone(pair, drive)

        drive(pair.here.claim("client", 7, THERE))
        drive(pair.here.stop())

    @behaviour("CLUSTER-19", needs="has_peers")
    def test_cluster_19_a_link_tells_how_it_does(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """The link to a reachable node has credit, and valid numbers."""
        pair = self._pair(cluster_backend, drive, clock)
        link = pair.here.link(THERE)

        assert isinstance(link, LinkState)
        assert link.credit > 0
        assert link.queued >= 0
        assert isfinite(link.round_trip_s)
        assert link.round_trip_s >= 0
        self._end(pair, drive)

    @behaviour("CLUSTER-20", needs="can_stall")
    def test_cluster_20_a_full_link_takes_no_more(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A full link has no credit, drops forwarded messages without an error, and recovers.

        The messages that it accepted arrive in order.
        """
        pair = self._pair(cluster_backend, drive, clock)
        go_on = self.stall(pair.there)
        credit = pair.here.link(THERE).credit
        for number in range(1, credit + 101):
            pair.here.forward(THERE, [message(number=number)])
        full = pair.here.link(THERE)
        go_on()
        _wait(lambda: pair.here.link(THERE).credit > 0, drive)
        pair.here.forward(THERE, [message(number=credit + 200)])
        _wait(lambda: pair.others.messages[-1:] == [(HERE, message(number=credit + 200))], drive)

        numbers = [each.id.counter for _, each in pair.others.messages]
        assert full.credit == 0
        assert full.queued <= credit + 100
        assert numbers == sorted(set(numbers))
        assert numbers[:credit] == list(range(1, credit + 1))
        self._end(pair, drive)

    @behaviour("CLUSTER-21", needs="has_peers")
    def test_cluster_21_a_publisher_is_heard_in_order(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """With ORDER_PER_PUBLISHER, a publisher's messages of a topic arrive in order.

        Messages with and without acknowledgement do not overtake each other.
        """
        if Guarantee.ORDER_PER_PUBLISHER not in cluster_backend.guarantees:
            pytest.skip("the backend does not guarantee ORDER_PER_PUBLISHER")
        pair = self._pair(cluster_backend, drive, clock)
        answers: list[Commit] = []
        for number in range(1, 9, 2):
            pair.here.forward(THERE, [message(number=number)])
            answers.append(pair.here.forward_acked(THERE, [message(number=number + 1, qos=1)]))
        for answer in answers:
            drive(answer)

        assert [each.id.counter for _, each in pair.others.messages] == list(range(1, 9))
        self._end(pair, drive)

    @behaviour("CLUSTER-22", needs="has_peers")
    def test_cluster_22_who_leaves_is_missed(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """When a node leaves, the other is notified, and does not have it among the reachable members that are UP."""
        pair = self._pair(cluster_backend, drive, clock)
        told = len(pair.news.members)
        self._gone(pair, drive)

        assert any(each.node == THERE for each in pair.news.members[told:])
        assert Member(HERE, MemberState.UP) in pair.here.members()
        drive(pair.here.stop())

    @behaviour("CLUSTER-23", needs="has_peers")
    def test_cluster_23_nothing_goes_to_who_is_gone(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """Messages for a dead node that must be acknowledged fail, and no barrier waits for it."""
        pair = self._pair(cluster_backend, drive, clock)
        self._gone(pair, drive)
        pair.here.routes_update(1, [RouteChange("a")], [])

        with pytest.raises(ServiceUnavailable):
            drive(pair.here.forward_acked(THERE, [message(qos=1)]))
        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        drive(pair.here.stop())

    @behaviour("CLUSTER-24", needs="hands_off")
    def test_cluster_24_a_session_moves_whole(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A hand-off delivers its chunks in order when it is committed; an aborted one delivers nothing."""
        pair = self._pair(cluster_backend, drive, clock)
        moving = drive(pair.here.hand_off("moving", 3, THERE))
        staying = drive(pair.here.hand_off("staying", 4, THERE))
        for chunk in (b"one ", b"", b"two ", bytes(100_000)):
            drive(moving.chunk(chunk))
            drive(staying.chunk(chunk))
        before = dict(self.handed_off(pair.there))
        drive(moving.commit())
        drive(staying.abort())

        assert before == {}
        assert dict(self.handed_off(pair.there)) == {"moving": b"one two " + bytes(100_000)}
        self._end(pair, drive)

    @behaviour("CLUSTER-25", needs="asks")
    def test_cluster_25_a_question_is_answered(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request returns the other core's answer to that method and data."""
        pair = self._pair(cluster_backend, drive, clock)
        self.answering(pair.there, lambda method, data: method.encode() + b":" + data)

        answers = [drive(pair.here.ask(THERE, method, data, LIMIT_S)) for method, data in (("a", b"\0"), ("b", b""))]

        assert answers == [b"a:\0", b"b:"]
        self._end(pair, drive)

    @behaviour("CLUSTER-26", needs="can_stall")
    def test_cluster_26_a_question_has_an_end(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request without an answer fails after its limit."""
        pair = self._pair(cluster_backend, drive, clock)
        go_on = self.stall(pair.there)
        begun = clock.monotonic()

        with pytest.raises(Exception) as raised:
            drive(pair.here.ask(THERE, "method", b"", LIMIT_S))

        assert not isinstance(raised.value, NoAnswer)
        assert clock.monotonic() - begun <= LIMIT_S + 1
        go_on()
        self._end(pair, drive)

    # Within

    def _pair(self, here: ClusterBackend, drive: Driver, clock: TurnableClock) -> Pair:
        pair = Pair(here, self.peer(here), News(), News())
        drive(pair.here.start(HERE, pair.news))
        drive(pair.there.start(THERE, pair.others))
        _wait(lambda: _up(pair.here, THERE) and _up(pair.there, HERE), drive)
        return pair

    def _gone(self, pair: Pair, drive: Driver) -> None:
        """The peer leaves and stops, and this node has noticed it."""
        drive(pair.there.leave(LIMIT_S))
        drive(pair.there.stop())
        _wait(lambda: not _up(pair.here, THERE), drive)

    def _end(self, pair: Pair, drive: Driver) -> None:
        drive(pair.there.stop())
        drive(pair.here.stop())


def _told(news: News, node: NodeIdentity) -> list[MemberState]:
    return [member.state for member in news.members if member.node == node]


def _up(backend: ClusterBackend, node: NodeIdentity) -> bool:
    return Member(node, MemberState.UP) in backend.members()


def _wait(condition: Callable[[], bool], drive: Driver) -> None:
    until: Maybe[None] = _Until(condition)
    drive(until)


class _Until(Awaitable[None]):
    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def __await__(self) -> Generator[Any, None, None]:
        while not self._condition():
            yield
