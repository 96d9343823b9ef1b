"""The contract of a cluster backend: alone and with a second node."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from math import isfinite
from typing import Any, Final

import pytest
from attrs import frozen

from kinmqtt_spi.errors import MalformedBatch, NodeGone, ServiceUnavailable, SpiError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import (
    ClusterBackend,
    Guarantee,
    HandOff,
    LinkState,
    Member,
    MemberState,
    RouteChange,
)
from kinmqtt_spi.testing.behaviours import behaviour
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import AsyncioDriver, Driver, NoAnswer, TurningDriver
from kinmqtt_spi.values import Maybe, NodeIdentity

NOWHERE: Final = NodeIdentity("nowhere", 0xBAD)
"""A node that is no member."""
LIMIT_S: Final = 2.0
BATCH_BYTES: Final = 1 << 10
"""The size of a batch that fills a link bit by bit."""


class News:
    """A listener that collects reports, in order."""

    def __init__(self) -> None:
        self.batches: list[tuple[NodeIdentity, bytes, bool]] = []
        self.routes: list[tuple[NodeIdentity, int, tuple[RouteChange, ...], tuple[RouteChange, ...]]] = []
        self.members: list[Member] = []
        self.claims: list[tuple[str, int, NodeIdentity]] = []
        self.answer: Callable[[], Maybe[bytes]] = lambda: b""
        """What :meth:`received` answers."""
        self.reply: Callable[[str, bytes], Maybe[bytes]] = lambda method, data: b""
        """What :meth:`asked` answers."""
        self.handed: dict[str, bytes] = {}
        """The states that were handed off completely, by client id."""
        self.sessions: list[tuple[str, int]] = []
        """What :meth:`owned` answers."""
        self.release: Callable[[], Maybe[None]] = lambda: None
        """What :meth:`session_claimed` answers."""

    def received(self, origin: NodeIdentity, batch: bytes, assured: bool) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.batches.append((origin, batch, assured))
        return self.answer()

    def asked(self, origin: NodeIdentity, method: str, data: bytes) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        return self.reply(method, data)

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        return _Handed(self, client_id)

    def owned(self) -> Iterable[tuple[str, int]]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        return self.sessions

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
        wanted: dict[tuple[str, str | None], RouteChange] = {}
        for _, _, added, removed in (told for told in self.routes if told[0] == node):
            for gone in removed:
                wanted.pop(gone.key, None)
            wanted.update({route.key: route for route in added})
        return set(wanted.values())

    @property
    def numbers(self) -> list[int]:
        """The numbers of the batches that :func:`numbered` made, in the order of arrival."""
        return [int(batch) for _, batch, _ in self.batches]


class _Handed(HandOff):
    """A session that another node hands off."""

    def __init__(self, news: News, client_id: str) -> None:
        self._news = news
        self._client_id = client_id
        self._state = b""

    def chunk(self, data: bytes) -> None:
        self._state += data

    def commit(self) -> None:
        self._news.handed[self._client_id] = self._state

    def abort(self) -> None:
        self._state = b""


def numbered(number: int) -> bytes:
    """A batch with a number."""
    return b"%d" % number


class Late(Awaitable[Any]):
    """An answer that is available after a number of looks, and then appends to ``events``."""

    def __init__(
        self, events: list[str], error: Exception | None = None, looks: int = 100, value: bytes | None = None
    ) -> None:
        self._events = events
        self._error = error
        self._looks = looks
        self._value = value

    def __await__(self) -> Generator[Any, None, bytes | None]:
        for _ in range(self._looks):
            yield
        self._events.append("there")
        if self._error is not None:
            raise self._error
        return self._value


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

    # Alone

    @behaviour("CLUSTER-01")
    def test_cluster_01_it_is_told_when_it_is_up(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """This node is JOINING when ``start`` completes, and UP when ``up`` does; the listener was notified."""
        news = News()
        drive(cluster_backend.start(HERE, news))
        before = _told(news, HERE)[-1:]
        drive(cluster_backend.up())

        assert (before, _told(news, HERE)[-1:]) == ([MemberState.JOINING], [MemberState.UP])
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-02")
    def test_cluster_02_it_is_a_member(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``members`` has this node, UP and reachable, once."""
        self._start(cluster_backend, HERE, News(), drive)

        assert [each for each in cluster_backend.members() if each.node == HERE] == [Member(HERE, MemberState.UP)]
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-03")
    def test_cluster_03_alone_no_route_is_waited_for(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Without other nodes a barrier has no laggards, and routes can be announced."""
        self._start(cluster_backend, HERE, News(), drive)
        cluster_backend.routes_update(1, [RouteChange("a/#"), RouteChange("b", "group")], [])
        cluster_backend.routes_update(2, [], [RouteChange("a/#")])

        assert list(drive(cluster_backend.route_barrier(2, LIMIT_S))) == []
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-04")
    def test_cluster_04_nobody_has_to_let_go(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A claim of a client id without an owner, or owned by an earlier process of this node, completes."""
        self._start(cluster_backend, HERE, News(), drive)
        for epoch, owner in enumerate((None, HERE, NodeIdentity(HERE.name, 0x01D)), 1):
            drive(cluster_backend.claim("client", epoch, owner))
            cluster_backend.release("client", epoch)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-05")
    def test_cluster_05_an_unknown_node_is_named(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """Calls for a node that is no member raise NodeGone, which names that node."""
        self._start(cluster_backend, HERE, News(), drive)
        calls: list[Callable[[], object]] = [
            lambda: cluster_backend.push(NOWHERE, b"1"),
            lambda: drive(cluster_backend.deliver(NOWHERE, b"1", 1)),
            lambda: cluster_backend.link(NOWHERE),
            lambda: drive(cluster_backend.hand_off("client", 1, NOWHERE)),
            lambda: drive(cluster_backend.ask(NOWHERE, "method", b"", LIMIT_S)),
        ]
        for call in calls:
            with pytest.raises(NodeGone) as raised:
                call()
            assert NOWHERE.name in str(raised.value)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-06")
    def test_cluster_06_leaving_is_told(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``leave`` notifies the listener that this node is LEAVING, and completes."""
        news = News()
        self._start(cluster_backend, HERE, news, drive)
        drive(cluster_backend.leave(LIMIT_S))

        assert MemberState.LEAVING in _told(news, HERE)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-07")
    def test_cluster_07_it_stops_again(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """A second stop, or a stop without leaving, raises nothing, and nothing is reported any more."""
        news = News()
        self._start(cluster_backend, HERE, news, drive)
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
        """A batch arrives unchanged, once, with the node that it comes from and the way it was sent."""
        pair = self._pair(cluster_backend, drive, clock)
        pushed = [bytes(range(256)), b"", bytes(1 << 20)]
        for batch in pushed:
            assert pair.here.push(THERE, batch) is True
            # A link may take one large batch at a time.
            _wait(lambda batch=batch: pair.others.batches[-1:] == [(HERE, batch, False)], drive)  # type: ignore[misc]
        drive(pair.here.deliver(THERE, b"\0\xff", 3))

        assert pair.others.batches == [(HERE, batch, False) for batch in pushed] + [(HERE, b"\0\xff", True)]
        assert pair.news.batches == []
        self._end(pair, drive)

    @behaviour("CLUSTER-11", needs="has_peers")
    def test_cluster_11_acknowledged_means_committed(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """``deliver`` completes only after the other node has answered, with that answer, unchanged."""
        pair = self._pair(cluster_backend, drive, clock)
        events: list[str] = []
        pair.others.answer = lambda: Late(events, value=b"\0answer\xff")

        answer = drive(pair.here.deliver(THERE, b"1", 1))
        events.append("answered")

        assert answer == b"\0answer\xff"
        assert events == ["there", "answered"]
        self._end(pair, drive)

    @behaviour("CLUSTER-12", needs="has_peers")
    def test_cluster_12_a_failed_commit_is_told(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """If the other node can't commit, ``deliver`` fails, and later batches are accepted again."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.others.answer = lambda: Late([], ServiceUnavailable("the disk is full"))
        with pytest.raises(ServiceUnavailable) as raised:
            drive(pair.here.deliver(THERE, b"1", 1))

        assert not isinstance(raised.value, NodeGone)
        pair.others.answer = lambda: b"done"
        assert drive(pair.here.deliver(THERE, b"2", 1)) == b"done"
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
        self._start(cluster_backend, HERE, news, drive)
        cluster_backend.routes_update(1, [RouteChange("a"), RouteChange("b")], [])
        cluster_backend.routes_update(2, [], [RouteChange("a")])
        there = self.peer(cluster_backend)
        self._start(there, THERE, others, drive)
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
        assert link.credit_bytes > 0
        assert link.queued_bytes >= 0
        assert isfinite(link.round_trip_s)
        assert link.round_trip_s >= 0
        self._end(pair, drive)

    @behaviour("CLUSTER-20", needs="can_stall")
    def test_cluster_20_a_full_link_takes_no_more(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A full link has no credit, refuses batches without an error, and recovers.

        The batches that it accepted arrive in order, and no others.
        """
        pair = self._pair(cluster_backend, drive, clock)
        go_on = self.stall(pair.there)
        number = 0
        accepted: list[int] = []
        refused = 0
        while refused < 3:
            number += 1
            if pair.here.push(THERE, numbered(number).ljust(BATCH_BYTES)):
                accepted.append(number)
            else:
                refused += 1
        full = pair.here.link(THERE)
        go_on()
        _wait(lambda: pair.here.link(THERE).credit_bytes > 0, drive)
        accepted.append(number + 1)
        assert pair.here.push(THERE, numbered(number + 1))
        _wait(lambda: pair.others.numbers[-1:] == [number + 1], drive)

        assert full.credit_bytes == 0
        assert pair.others.numbers == accepted
        self._end(pair, drive)

    @behaviour("CLUSTER-21", needs="has_peers")
    def test_cluster_21_a_publisher_is_heard_in_order(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """With ORDER_PER_PUBLISHER, batches arrive in order, pushed and delivered ones alike."""
        if Guarantee.ORDER_PER_PUBLISHER not in cluster_backend.guarantees:
            pytest.skip("the backend does not guarantee ORDER_PER_PUBLISHER")
        pair = self._pair(cluster_backend, drive, clock)
        answers: list[Maybe[bytes]] = []
        for number in range(1, 9, 2):
            pair.here.push(THERE, numbered(number))
            answers.append(pair.here.deliver(THERE, numbered(number + 1), 1))
        for answer in answers:
            drive(answer)

        assert pair.others.numbers == list(range(1, 9))
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
        """A batch for a dead node that must be answered fails with NodeGone, and no barrier waits for it."""
        pair = self._pair(cluster_backend, drive, clock)
        self._gone(pair, drive)
        pair.here.routes_update(1, [RouteChange("a")], [])

        with pytest.raises(NodeGone):
            drive(pair.here.deliver(THERE, b"1", 1))
        assert list(drive(pair.here.route_barrier(1, LIMIT_S))) == []
        drive(pair.here.stop())

    @behaviour("CLUSTER-24", needs="has_peers")
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
        before = dict(pair.others.handed)
        drive(moving.commit())
        drive(staying.abort())

        assert before == {}
        assert pair.others.handed == {"moving": b"one two " + bytes(100_000)}
        self._end(pair, drive)

    @behaviour("CLUSTER-25", needs="has_peers")
    def test_cluster_25_a_question_is_answered(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request returns the other core's answer to that method and data."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.others.reply = lambda method, data: method.encode() + b":" + data

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

    # What a node owes to another

    @behaviour("CLUSTER-27", needs="can_stall")
    def test_cluster_27_time_ends_no_delivery(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """``deliver`` waits for a node that is silent, however long, and completes when that node goes on."""
        pair = self._pair(cluster_backend, drive, clock)
        go_on = self.stall(pair.there)
        outcome: list[bytes] = []
        answer = _noted(pair.here.deliver(THERE, b"1", 1), outcome)
        clock.advance(3600.0)
        before = list(outcome)
        go_on()
        drive(answer)

        assert before == []
        assert outcome == [b""]
        assert pair.others.numbers == [1]
        self._end(pair, drive)

    @behaviour("CLUSTER-28", needs="can_stall")
    def test_cluster_28_a_death_ends_a_delivery(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """``deliver`` under way to a node that is gone fails with NodeGone."""
        pair = self._pair(cluster_backend, drive, clock)
        self.stall(pair.there)
        answer = pair.here.deliver(THERE, b"1", 1)
        drive(pair.there.stop())

        with pytest.raises(NodeGone) as raised:
            drive(answer)
        assert THERE.name in str(raised.value)
        drive(pair.here.stop())

    @behaviour("CLUSTER-29", needs="has_peers")
    def test_cluster_29_a_malformed_batch_is_not_acknowledged(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A batch that the other core can't read is not answered as committed, and others are accepted later."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.others.answer = _refuse_once(pair.others)
        try:
            answer = drive(pair.here.deliver(THERE, b"1", 1))
        except SpiError:
            answer = None

        assert answer != b"wrong"
        assert drive(pair.here.deliver(THERE, b"2", 1)) == b""
        self._end(pair, drive)

    @behaviour("CLUSTER-30", needs="has_peers")
    def test_cluster_30_a_node_is_up_when_it_says_so(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """Others hear that a node is UP after its ``up`` only, and have its routes by then."""
        news, others = News(), News()
        there = self.peer(cluster_backend)
        self._start(there, THERE, others, drive)
        drive(cluster_backend.start(HERE, news))
        cluster_backend.routes_update(1, [RouteChange("a")], [])
        _wait(lambda: MemberState.JOINING in _told(others, HERE), drive)
        early = list(_told(others, HERE))
        drive(cluster_backend.up())

        assert MemberState.UP not in early
        assert others.routes_of(HERE) == {RouteChange("a")}
        _wait(lambda: _told(others, HERE)[-1:] == [MemberState.UP], drive)
        self._end(Pair(cluster_backend, there, news, others), drive)

    @behaviour("CLUSTER-31", needs="has_peers")
    def test_cluster_31_a_route_announced_again_replaces_itself(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A route with another QoS or weight reaches the other node after the former one, whole."""
        pair = self._pair(cluster_backend, drive, clock)
        routes = [RouteChange("a", "g", 0, 0), RouteChange("a", "g", 1, 7), RouteChange("a", "g", 2, 3)]
        for version, route in enumerate(routes, 1):
            pair.here.routes_update(version, [route], [])
        drive(pair.here.route_barrier(3, LIMIT_S))

        assert pair.others.routes_of(HERE) == {RouteChange("a", "g", 2, 3)}
        self._end(pair, drive)

    @behaviour("CLUSTER-32", needs="has_peers")
    def test_cluster_32_who_joins_knows_before_it_serves(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """When ``start`` completes, this node has the members and the routes of the others."""
        news, others = News(), News()
        there = self.peer(cluster_backend)
        self._start(there, THERE, others, drive)
        there.routes_update(1, [RouteChange("a"), RouteChange("b", "g", 1, 2)], [])
        drive(cluster_backend.start(HERE, news))

        assert news.routes_of(THERE) == {RouteChange("a"), RouteChange("b", "g", 1, 2)}
        assert Member(THERE, MemberState.UP) in cluster_backend.members()
        self._end(Pair(cluster_backend, there, news, others), drive)

    @behaviour("CLUSTER-33", needs="has_peers")
    def test_cluster_33_a_refused_question_fails(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """A request that the other core refuses fails with ServiceUnavailable, and its reason in words."""
        pair = self._pair(cluster_backend, drive, clock)

        def refuse(method: str, data: bytes) -> bytes:
            raise ServiceUnavailable(f"{method} is unknown here")

        pair.others.reply = refuse
        with pytest.raises(ServiceUnavailable) as raised:
            drive(pair.here.ask(THERE, "riddle", b"", LIMIT_S))

        assert "riddle is unknown here" in str(raised.value)
        self._end(pair, drive)

    @behaviour("CLUSTER-34")
    def test_cluster_34_an_owner_is_located(self, cluster_backend: ClusterBackend, drive: Driver) -> None:
        """``locate`` of a client id that nobody has claimed answers nothing, or no owner and an epoch."""
        self._start(cluster_backend, HERE, News(), drive)
        found = drive(cluster_backend.locate("nobody"))

        assert found is None or (found.owner is None and found.epoch >= 0)
        drive(cluster_backend.stop())

    @behaviour("CLUSTER-35", needs="has_peers")
    def test_cluster_35_who_has_stopped_hears_nothing(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """After ``stop`` nothing of other nodes reaches the listener."""
        pair = self._pair(cluster_backend, drive, clock)
        pair.here.push(THERE, b"1")
        drive(pair.there.stop())
        told = (len(pair.others.batches), len(pair.others.routes), len(pair.others.members))
        pair.here.routes_update(1, [RouteChange("a")], [])
        drive(pair.here.route_barrier(1, LIMIT_S))
        clock.advance(1.0)

        assert (len(pair.others.batches), len(pair.others.routes), len(pair.others.members)) == told
        drive(pair.here.stop())

    @behaviour("CLUSTER-36", needs="has_peers")
    def test_cluster_36_answers_keep_to_their_batches(
        self, cluster_backend: ClusterBackend, drive: Driver, clock: TurnableClock
    ) -> None:
        """Answers that come in another order than their batches reach the right calls."""
        pair = self._pair(cluster_backend, drive, clock)
        looks = iter((300, 10, 100))
        pair.others.answer = lambda: Late([], looks=next(looks), value=pair.others.batches[-1][1])
        answers = [pair.here.deliver(THERE, numbered(number), 1) for number in (1, 2, 3)]

        assert [drive(answer) for answer in answers] == [b"1", b"2", b"3"]
        self._end(pair, drive)

    # Within

    def _start(self, backend: ClusterBackend, node: NodeIdentity, news: News, drive: Driver) -> None:
        drive(backend.start(node, news))
        drive(backend.up())

    def _pair(self, here: ClusterBackend, drive: Driver, clock: TurnableClock) -> Pair:
        pair = Pair(here, self.peer(here), News(), News())
        self._start(pair.here, HERE, pair.news, drive)
        self._start(pair.there, THERE, pair.others, drive)
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


def _refuse_once(news: News) -> Callable[[], Maybe[bytes]]:
    def answer() -> bytes:
        if not [batch for _, batch, _ in news.batches if batch != news.batches[0][1]]:
            raise MalformedBatch("this is no batch")
        return b""

    return answer


async def _noted(answer: Maybe[bytes], outcome: list[bytes]) -> None:
    outcome.append(await answer if isinstance(answer, Awaitable) else answer)


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
