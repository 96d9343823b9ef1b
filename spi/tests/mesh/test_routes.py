"""Routes between nodes."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.mesh import routes
from kinmqtt_spi.mesh.frames import MalformedFrame
from kinmqtt_spi.mesh.link import Token
from kinmqtt_spi.mesh.routes import CHUNK_ROUTES, FIRST, LAST, WINDOW, RouteCopy, RouteFeed, RouteLog
from kinmqtt_spi.services.cluster import RouteChange

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
ROUTES = st.builds(
    RouteChange,
    TEXTS,
    st.none(),
    st.integers(0, 2),
) | st.builds(RouteChange, TEXTS, TEXTS, st.integers(0, 2), st.integers(0, 2**32 - 1))
UPDATES = st.lists(
    st.tuples(st.lists(ROUTES, max_size=5), st.lists(ROUTES, max_size=3), st.integers(0, 3)), max_size=12
)


class Wire:
    """Carries chunks from one node's log to another's copy, when it is told to."""

    def __init__(self, log: RouteLog) -> None:
        self.copy = RouteCopy()
        self.chunks: deque[tuple[bytes, Token]] = deque()
        self.feed = RouteFeed(log, self.send, lambda: self.progress.append(self.feed.known), self.pump_later)
        self.later: list[Callable[[], object]] = []
        self.progress: list[int] = []
        self.most = 0
        self.routes: dict[tuple[str, str | None], RouteChange] = {}
        """What the reports add up to."""

    def pump_later(self) -> None:
        self.later.append(self.feed.pump)

    def send(self, chunk: bytes, token: Token) -> None:
        self.chunks.append((chunk, token))
        self.most = max(self.most, len(self.chunks))

    def carry(self, count: int = 1_000_000) -> None:
        while self.chunks and count:
            count -= 1
            chunk, token = self.chunks.popleft()
            changes = self.copy.take(chunk)
            if changes is not None:
                added, removed = changes
                for route in removed:
                    del self.routes[route.key]
                self.routes.update((route.key, route) for route in added)
            token.set(self.copy.answer)


def apply(
    known: dict[tuple[str, str | None], RouteChange], added: list[RouteChange], removed: list[RouteChange]
) -> None:
    for route in removed:
        known.pop(route.key, None)
    known.update((route.key, route) for route in added)


@given(updates=UPDATES, limit=st.sampled_from([3, 1000]))
def test_a_copy_follows_its_log(updates: list[tuple[list[RouteChange], list[RouteChange], int]], limit: int) -> None:
    """However slowly chunks travel, and however short the log is, the copy becomes what the log has."""
    log = RouteLog(limit)
    wire = Wire(log)
    wire.feed.pump()
    expected: dict[tuple[str, str | None], RouteChange] = {}
    for version, (added, removed, carried) in enumerate(updates, 1):
        log.update(version, added, removed)
        apply(expected, added, removed)
        wire.feed.pump()
        wire.carry(carried)
    wire.carry()

    assert wire.routes == expected
    assert wire.copy.version == wire.feed.known == len(updates)
    assert wire.progress == sorted(wire.progress)


def test_a_first_report_has_all_routes() -> None:
    """All routes travel in chunks, and are reported together, as they were when they were sent."""
    log = RouteLog()
    many = [RouteChange(f"devices/{number}") for number in range(2 * CHUNK_ROUTES + 1)]
    log.update(5, many, [])
    wire = Wire(log)
    wire.feed.pump()
    log.update(6, [], many[:1])
    wire.carry(2)
    before = dict(wire.routes)
    wire.carry(1)
    first = len(wire.routes)
    wire.carry()

    assert before == {}
    assert first == len(many)
    assert len(wire.routes) == len(many) - 1
    assert wire.progress == [5, 6]


def test_few_chunks_are_on_their_way() -> None:
    """However much changes while a node does not answer, only a window of chunks is sent; the rest goes together."""
    log = RouteLog()
    wire = Wire(log)
    wire.feed.pump()
    for version in range(1, 1001):
        log.update(version, [RouteChange(f"a/{version}")], [])
        wire.feed.pump()
    waiting = len(wire.chunks)
    wire.carry(waiting)
    rest = len(wire.chunks)
    wire.carry()

    assert (waiting, wire.most) == (WINDOW, WINDOW)
    assert rest == 1
    assert len(wire.routes) == 1000
    assert wire.feed.snapshots == 1


def test_a_chunk_is_bounded_in_bytes() -> None:
    """Long filters make shorter chunks, so that each fits in a frame."""
    log = RouteLog()
    log.update(1, [RouteChange(f"{number}/".ljust(60_000, "x")) for number in range(50)], [])
    wire = Wire(log)
    wire.feed.pump()
    sizes = [len(chunk) for chunk, _ in wire.chunks]
    wire.carry()

    assert len(sizes) == 3
    assert max(sizes) < routes.CHUNK_BYTES + 70_000
    assert len(wire.routes) == 50


def test_a_gap_is_closed_with_all_routes() -> None:
    """A copy that misses a version ignores what follows; its answer lets the log send all routes, once."""
    log = RouteLog()
    wire = Wire(log)
    wire.feed.pump()
    wire.carry()
    for version in range(1, 5):
        log.update(version, [RouteChange(f"a/{version}")], [RouteChange("a/1")] if version == 3 else [])
        wire.feed.pump()
    wire.chunks[0][1].set(wire.copy.answer)
    wire.chunks.popleft()
    wire.carry()

    assert set(wire.routes) == {("a/2", None), ("a/3", None), ("a/4", None)}
    assert wire.feed.snapshots == 2
    assert wire.feed.known == 4


def test_all_routes_replace_those_before() -> None:
    """After a gap only what differs is reported, routes that are gone included."""
    log = RouteLog()
    same, changed, gone = RouteChange("same"), RouteChange("changed", "g", weight=1), RouteChange("gone")
    log.update(1, [same, changed, gone], [])
    copy = RouteCopy()
    for chunk in log.snapshot():
        copy.take(chunk)
    log.update(2, [RouteChange("changed", "g", weight=2), RouteChange("new")], [gone])

    [changes] = [copy.take(chunk) for chunk in log.snapshot()]

    assert changes is not None
    assert changes[0] == [RouteChange("changed", "g", weight=2), RouteChange("new")]
    assert changes[1] == [gone]


def test_nothing_is_kept_without_readers() -> None:
    """A node without others keeps no changes; who comes gets all routes, and a feed that is closed sends nothing."""
    log = RouteLog()
    wire = Wire(log)
    wire.feed.pump()
    wire.carry()
    wire.feed.close()
    wire.feed.close()
    log.update(1, [RouteChange("a")], [])
    wire.feed.pump()

    assert log.readers == 0
    assert log.since(0) is None
    assert not wire.chunks


def test_a_failed_chunk_is_made_good() -> None:
    """If a chunk fails, all routes are sent again a little later, whether they change or not."""
    log = RouteLog()
    log.update(1, [RouteChange("a")], [])
    wire = Wire(log)
    wire.feed.pump()
    wire.chunks.popleft()[1].fail(RuntimeError())
    assert not wire.chunks
    for call in wire.later:
        call()
    wire.carry()

    assert set(wire.routes) == {("a", None)}


def test_chunks_that_fail_one_after_the_other_are_made_good() -> None:
    """Routes are sent again when the last of them has failed, also if that takes longer than the pause."""
    log = RouteLog()
    wire = Wire(log)
    wire.feed.pump()
    log.update(1, [RouteChange("a")], [])
    wire.feed.pump()
    tokens = [wire.chunks.popleft()[1] for _ in range(2)]
    for token in tokens:
        token.fail(RuntimeError())
        while wire.later:
            wire.later.pop()()
    wire.carry()

    assert set(wire.routes) == {("a", None)}


def test_versions_go_up() -> None:
    """A version that is not above the one before raises ValueError."""
    log = RouteLog()
    log.update(2, [], [])

    with pytest.raises(ValueError, match="version 2 come after those of 2"):
        log.update(2, [RouteChange("a")], [])


@given(changes=st.lists(st.tuples(ROUTES, st.booleans()), max_size=20))
def test_routes_are_read_as_they_were_written(changes: list[tuple[RouteChange, bool]]) -> None:
    """Filter, group, QoS, weight and removal travel unchanged."""
    data = b"".join(routes.pack_change(route, removed) for route, removed in changes)

    assert list(routes.unpack_changes(data)) == changes


@given(noise=st.binary(max_size=60), flags=st.integers(0, 7))
def test_noise_is_refused(noise: bytes, flags: int) -> None:
    """A chunk that can't be read raises MalformedFrame, and nothing else."""
    head = bytes((flags,)) + bytes(16)
    for chunk in (noise, head + noise):
        copy = RouteCopy()
        try:
            copy.take(chunk)
        except MalformedFrame:
            assert copy.version == -1


@pytest.mark.parametrize(
    "chunk",
    [
        b"short",
        b"\x08" + bytes(16),
        b"\x03" + (2).to_bytes(8, "big") + (1).to_bytes(8, "big"),
        b"\x07" + bytes(16) + b"\x0c\0\0",
        b"\x07" + bytes(16) + b"\x00\0\x05abc",
        b"\x07" + bytes(16) + b"\x00\0\x01\xff",
        b"\x07" + bytes(16) + b"\x02\0\x01a\0\0",
    ],
)
def test_bad_chunks_are_refused(chunk: bytes) -> None:
    """Cut-off chunks, unknown flags, versions that go back and broken texts raise MalformedFrame."""
    with pytest.raises(MalformedFrame):
        RouteCopy().take(chunk)


def test_a_chunk_without_its_beginning_does_nothing() -> None:
    """The rest of routes whose first chunk was not seen is ignored."""
    copy = RouteCopy()

    assert copy.take(bytes((LAST,)) + bytes(16)) is None
    assert copy.take(bytes((FIRST,)) + bytes(16)) is None
    assert copy.version == -1


def test_chunks_whose_last_one_does_not_come_can_be_forgotten() -> None:
    """Those that come later have no effect; the next ones that are whole have."""
    log = RouteLog()
    log.update(1, [RouteChange(str(number)) for number in range(2 * CHUNK_ROUTES)], [])
    copy = RouteCopy()
    first, last = log.snapshot()
    copy.take(first)
    is_awaited = copy.awaits_chunk
    copy.forget_chunks()

    assert is_awaited
    assert not copy.awaits_chunk
    assert copy.take(last) is None
    assert copy.version == -1
    assert [copy.take(chunk) is not None for chunk in log.snapshot()] == [False, True]
