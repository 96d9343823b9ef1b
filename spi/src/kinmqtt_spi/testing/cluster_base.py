"""The base of the suites of cluster backends: a listener, late answers, and a pair of connected nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
from enum import Enum, auto
from typing import Any, Final, NoReturn, TypeVar

import pytest
from attrs import frozen

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.cluster import GONE, ClusterBackend, HandOff, Member, MemberState, RouteChange
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.testing.build import HERE, THERE
from kinmqtt_spi.testing.contract import Contract
from kinmqtt_spi.testing.driving import AsyncioDriver, Driver, TurningDriver
from kinmqtt_spi.values import Maybe, NodeIdentity

T = TypeVar("T")

LIMIT_S: Final = 2.0
"""The limit of barriers, questions and leaving."""
LOOKS: Final = 1_000_000
"""How often an answer may be checked before a test fails."""


class HandOffState(Enum):
    """How far a hand-off is."""

    OPEN = auto()
    COMMITTED = auto()
    ABORTED = auto()


class ReceivedHandOff(HandOff):
    """The new owner's end of a hand-off, which collects its chunks."""

    def __init__(self, client_id: str, epoch: int, origin: NodeIdentity, complete: Callable[[], Maybe[None]]) -> None:
        self.client_id = client_id
        self.epoch = epoch
        self.origin = origin
        self.chunks: list[bytes] = []
        self.state = HandOffState.OPEN
        self._complete = complete

    def chunk(self, data: bytes) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        self.chunks.append(data)

    def commit(self) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        self.state = HandOffState.COMMITTED
        return self._complete()

    def abort(self) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.HandOff`."""
        self.state = HandOffState.ABORTED


class News:
    """A listener that collects reports, in order."""

    shares_stores: bool = True
    """Whether the nodes use one session, one queue and one retain store."""

    def __init__(self) -> None:
        self.batches: list[tuple[NodeIdentity, bytes, bool]] = []
        self.questions: list[tuple[NodeIdentity, str, bytes]] = []
        self.routes: list[tuple[NodeIdentity, int, tuple[RouteChange, ...], tuple[RouteChange, ...]]] = []
        self.members: list[Member] = []
        self.claims: list[tuple[str, int, NodeIdentity]] = []
        self.hand_offs: list[ReceivedHandOff] = []
        self.expulsions: list[str] = []
        self.routes_at_up: dict[NodeIdentity, set[RouteChange]] = {}
        """The routes of each node that were known when it was first reported as UP."""
        self.owns: list[tuple[str, int]] = []
        """The return value of :meth:`owned`."""
        self.commit: Callable[[bytes], Maybe[bytes]] = lambda batch: b""
        """The answer of :meth:`received` to a batch."""
        self.answer: Callable[[str, bytes], Maybe[bytes]] = lambda method, data: b""
        """The answer of :meth:`asked` to a method and its data."""
        self.release: Callable[[], Maybe[None]] = lambda: None
        """The answer of :meth:`session_claimed`."""
        self.complete: Callable[[], Maybe[None]] = lambda: None
        """The answer to the commit of a hand-off."""
        self.arbiter: ClusterArbiter | None = None
        """The arbiter that decides splits."""

    def received(self, origin: NodeIdentity, batch: bytes, assured: bool) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.batches.append((origin, batch, assured))
        return self.commit(batch)

    def asked(self, origin: NodeIdentity, method: str, data: bytes) -> Maybe[bytes]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.questions.append((origin, method, data))
        return self.answer(method, data)

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.routes.append((node, version, tuple(added), tuple(removed)))

    def member_changed(self, member: Member) -> None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.members.append(member)
        if member.state is MemberState.UP:
            self.routes_at_up.setdefault(member.node, self.routes_of(member.node))

    def expelled(self, reason: str) -> None:
        """Note why this node is out of its cluster."""
        self.expulsions.append(reason)

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> Maybe[None]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.claims.append((client_id, epoch, owner))
        return self.release()

    def handing(self, client_id: str, epoch: int, origin: NodeIdentity) -> HandOff:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        self.hand_offs.append(ReceivedHandOff(client_id, epoch, origin, self.complete))
        return self.hand_offs[-1]

    def owned(self) -> Iterable[tuple[str, int]]:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        return list(self.owns)

    def epoch_of(self, client_id: str) -> int | None:
        """See :class:`~kinmqtt_spi.services.cluster.ClusterListener`."""
        return dict(self.owns).get(client_id)

    @property
    def payloads(self) -> list[bytes]:
        """The batches that were received."""
        return [batch for _, batch, _ in self.batches]

    @property
    def reports(self) -> int:
        """The number of calls that have brought something from another node."""
        asked = len(self.batches) + len(self.questions) + len(self.claims) + len(self.hand_offs)
        return asked + len(self.routes) + len(self.members)

    def states_of(self, node: NodeIdentity) -> list[MemberState]:
        """The states of that node, as they were reported."""
        return [member.state for member in self.members if member.node == node]

    def routes_of(self, node: NodeIdentity) -> set[RouteChange]:
        """The routes of that node, after all reports."""
        routes: dict[tuple[str, str | None], RouteChange] = {}
        for _, _, added, removed in (report for report in self.routes if report[0] == node):
            for route in removed:
                routes.pop(route.key, None)
            routes.update((route.key, route) for route in added)
        return set(routes.values())


class Late(Awaitable[T]):
    """An answer that is available after a number of looks: then ``result`` is called, and returns or raises it."""

    def __init__(self, result: Callable[[], T], looks: int = 20) -> None:
        self._result = result
        self._looks = looks

    def __await__(self) -> Generator[Any, None, T]:
        for _ in range(self._looks):
            yield
        return self._result()


class Gate(Awaitable[bytes]):
    """An answer that is available when it is given."""

    def __init__(self) -> None:
        self._given: list[bytes] = []

    def give(self, answer: bytes) -> None:
        """Complete the answer."""
        self._given.append(answer)

    def __await__(self) -> Generator[Any, None, bytes]:
        for _ in range(LOOKS):
            if self._given:
                return self._given[0]
            yield
        raise AssertionError("the backend looks at this answer without a pause: override `held` in the suite")


class Until(Awaitable[None]):
    """An awaitable that completes when a condition holds."""

    def __init__(self, condition: Callable[[], bool]) -> None:
        self._condition = condition

    def __await__(self) -> Generator[Any, None, None]:
        while not self._condition():
            yield


def failing(error: Exception) -> Callable[[], NoReturn]:
    """Return a call that raises ``error``."""

    def fail() -> NoReturn:
        raise error

    return fail


def recording(events: list[str], event: str, result: T) -> Callable[[], T]:
    """Return a call that appends ``event`` to ``events`` and returns ``result``."""

    def record() -> T:
        events.append(event)
        return result

    return record


def is_up(backend: ClusterBackend, node: NodeIdentity) -> bool:
    """Tell whether a backend has that node among its members, UP and reachable."""
    return Member(node, MemberState.UP) in backend.members()


def is_gone(backend: ClusterBackend, node: NodeIdentity) -> bool:
    """Tell whether that node is no member any more, or is DOWN or REMOVED."""
    return all(each.state in GONE for each in backend.members() if each.node == node)


def wait(condition: Callable[[], bool], drive: Driver) -> None:
    """Wait until a condition holds."""
    until: Maybe[None] = Until(condition)
    drive(until)


@frozen(slots=True)
class Pair:
    """Two connected backends: this node's and a peer's."""

    here: ClusterBackend
    there: ClusterBackend
    news: News
    """What this node was told."""
    others: News
    """What the peer was told."""


class NodesContract(Contract):
    """The flags, hooks and steps of the suite for cluster backends."""

    has_peers = False
    """Whether the suite may have a second node: override :meth:`peer`."""
    can_stall = False
    """Whether the suite may keep what is on its way to a node from arriving: override :meth:`stall`."""
    can_cut = False
    """Whether the suite may break the connections between two nodes: override :meth:`cut`."""
    stall_s = 60.0
    """For how many seconds a node may be stalled without counting as DOWN."""
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

    def cut(self, cluster_backend: ClusterBackend) -> None:
        """Break the connections of that node, with all that is on its way; the nodes connect again by themselves."""
        raise NotImplementedError(f"{type(self).__name__} sets can_cut, and does not override cut")

    def held(self, drive: Driver) -> tuple[Awaitable[bytes], Callable[[bytes], object]]:
        """Return an awaitable for the listener's answer, and a call that completes it.

        It is an asyncio future where asyncio runs, else an awaitable that is checked repeatedly. Override it for a
        backend that awaits Deferreds.
        """
        if isinstance(drive, AsyncioDriver):
            future: asyncio.Future[bytes] = drive.loop.create_future()
            return future, future.set_result
        gate = Gate()
        return gate, gate.give

    # Steps

    def _started(self, backend: ClusterBackend, drive: Driver) -> News:
        """The listener of a node that has joined and is UP."""
        news = News()
        drive(backend.start(HERE, news))
        drive(backend.up())
        return news

    def _joining(self, here: ClusterBackend, drive: Driver) -> Pair:
        """Two nodes that know each other, and are JOINING."""
        pair = Pair(here, self.peer(here), News(), News())
        drive(pair.here.start(HERE, pair.news))
        drive(pair.there.start(THERE, pair.others))
        wait(lambda: not is_gone(pair.here, THERE) and not is_gone(pair.there, HERE), drive)
        return pair

    def _pair(self, here: ClusterBackend, drive: Driver) -> Pair:
        """Two nodes that know each other, and are UP."""
        pair = self._joining(here, drive)
        drive(pair.here.up())
        drive(pair.there.up())
        wait(lambda: is_up(pair.here, THERE) and is_up(pair.there, HERE), drive)
        return pair

    def _gone(self, pair: Pair, drive: Driver) -> None:
        """The peer leaves and stops, and this node has noticed it."""
        drive(pair.there.leave(LIMIT_S))
        drive(pair.there.stop())
        wait(lambda: is_gone(pair.here, THERE), drive)

    def _end(self, pair: Pair, drive: Driver) -> None:
        drive(pair.there.stop())
        drive(pair.here.stop())

    def _pause(self, clock: TurnableClock, seconds: float) -> Awaitable[None]:
        """Let time pass: seconds of the clock, or at most a tenth of a real second where asyncio runs."""
        if self.reactor is not None:
            return asyncio.sleep(min(seconds, 0.1))
        until = clock.monotonic() + seconds
        return Until(lambda: clock.monotonic() >= until)

    async def _after(self, clock: TurnableClock, seconds: float, call: Callable[[], object]) -> None:
        """Make a call when time has passed."""
        await self._pause(clock, seconds)
        call()
