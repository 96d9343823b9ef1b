"""The event log in memory, and the consumers that follow it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.errors import OffsetOutOfRange
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.event import EVENT_BYTES, Event, EventKind, EventVersion, Recorded, Start


def event(client_id: str, counter: int = 0) -> Event:
    return Event(EventKind.CONNECT, client_id, EventVersion(1, counter), 0.0, {})


def events(*client_ids: str) -> list[Event]:
    return [event(client_id) for client_id in client_ids]


class Collector:
    """A handler that remembers the offsets of each batch, and raises as often as it is told."""

    def __init__(self, failures: int = 0) -> None:
        self.batches: list[list[int]] = []
        self.failures = failures

    def __call__(self, batch: Sequence[Recorded]) -> None:
        self.batches.append([record.offset for record in batch])
        if self.failures:
            self.failures -= 1
            raise RuntimeError("not now")

    @property
    def offsets(self) -> list[int]:
        return [offset for batch in self.batches for offset in batch]


class Hand:
    """A runner whose awaitables end when the test says so."""

    def __init__(self) -> None:
        self.open: list[tuple[Callable[[], None], Callable[[BaseException], None]]] = []

    def __call__(
        self, awaitable: Awaitable[None], done: Callable[[], None], failed: Callable[[BaseException], None]
    ) -> Awaitable[None]:
        self.open.append((done, failed))
        return awaitable


class Pending(Awaitable[None]):
    """An awaitable that nobody drives."""

    def __await__(self) -> Generator[Any, None, None]:
        yield from ()


def test_events_are_read_after_an_offset() -> None:
    """Offsets rise from 0, and a page begins after the offset it is asked from."""
    log = MemoryEventLog(TurnableClock().later)
    log.append(events("a", "b", "c"))

    page = log.read(0, 1)

    assert page == (Recorded(1, event("b")),)
    assert [record.offset for record in log.read(-1, 9)] == [0, 1, 2]
    assert (log.read(2, 9), log.read(-1, 0), log.newest) == ((), (), 2)


def test_the_oldest_events_go() -> None:
    """The log keeps so many events, and says from where on it can still answer."""
    log = MemoryEventLog(TurnableClock().later, retention=3)
    for number in range(10):
        log.append(events(str(number)))

    with pytest.raises(OffsetOutOfRange) as caught:
        log.read(5, 9)

    assert caught.value.oldest == log.oldest == 7
    assert [record.offset for record in log.read(6, 9)] == [7, 8, 9]
    assert len(log._records) <= 6


def test_the_oldest_events_go_where_they_take_too_much() -> None:
    """The log holds so many bytes, and no more: the oldest make room, and are no longer in memory either."""
    long = [evolve(event(str(number)), data={"filter": "x" * 5000}) for number in range(20)]
    most = 3 * max(each.size_bytes for each in long)
    log = MemoryEventLog(TurnableClock().later, retention_bytes=most)
    for each in long:
        log.append([each])
        assert log.size_bytes <= most

    held = [record.offset for record in log.read(log.oldest - 1, 99)]

    assert (held, log.oldest, log.newest) == ([17, 18, 19], 17, 19)
    assert log.size_bytes == sum(each.size_bytes for each in long[17:])
    assert sum(record.event.size_bytes for record in log._records) < most + 17 * EVENT_BYTES + 100
    with pytest.raises(OffsetOutOfRange):
        log.read(15, 9)


def test_the_newest_event_is_there_however_large_it_is() -> None:
    """A log whose bytes it exceeds has it alone; the next one takes its place."""
    log = MemoryEventLog(TurnableClock().later, retention_bytes=10_000)
    log.append([event("a"), evolve(event("b"), data={"filter": "x" * 50_000})])

    alone = log.read(0, 9)
    log.append([event("c")])

    assert [record.event.client_id for record in alone] == ["b"]
    assert [record.event.client_id for record in log.read(1, 9)] == ["c"]
    assert log.size_bytes == event("c").size_bytes


@given(
    st.lists(st.lists(st.integers(0, 3000), max_size=6), max_size=20),
    st.integers(1, 8),
    st.integers(1, 12_000),
    st.integers(0, 20),
)
def test_a_log_holds_what_its_bounds_let_it_hold(
    batches: list[list[int]], retention: int, retention_bytes: int, restart: int
) -> None:
    """Whatever comes, in whatever batches, and also in the next life: the newest that fit, and a right account."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later, retention=retention, retention_bytes=retention_bytes)
    sent: list[Event] = []
    for number, batch in enumerate(batches):
        if number == restart:
            held = log.read(log.oldest - 1, 10_000)
            log = MemoryEventLog(clock.later, retention=retention, retention_bytes=retention_bytes, records=held)
        several = [evolve(event("c"), data={"filter": "x" * size}) for size in batch]
        sent += several
        log.append(several)

        fitting = 0
        for count in range(1, min(retention, len(sent)) + 1):
            if count == 1 or sum(each.size_bytes for each in sent[-count:]) <= retention_bytes:
                fitting = count
        expected = sent[len(sent) - fitting :]
        assert [record.event for record in log.read(log.oldest - 1, 10_000)] == expected
        assert log.size_bytes == sum(each.size_bytes for each in expected)
        assert len(log._records) <= 2 * retention + len(batch)


def test_an_event_counts_for_what_is_in_it() -> None:
    """Texts, bytes and numbers, also within others; the client id too."""
    small = Event(EventKind.SUBSCRIBE, "c", EventVersion(1, 1), 0.0, {"filter": "a"})
    data = {"filter": "a" * 1001, "list": ["b" * 1000, {"key": b"c" * 1000}]}
    large = Event(EventKind.SUBSCRIBE, "d" * 1001, EventVersion(1, 1), 0.0, data)

    assert EVENT_BYTES < small.size_bytes < EVENT_BYTES + 100
    assert small.size_bytes + 4000 < large.size_bytes < small.size_bytes + 4500


def test_a_log_that_keeps_nothing_is_refused() -> None:
    """A retention below one event is a mistake in the settings."""
    with pytest.raises(ValueError, match="at least one"):
        MemoryEventLog(TurnableClock().later, retention=0)


def test_a_handler_is_never_called_by_an_append() -> None:
    """Events reach consumers in a later turn, so that a slow handler does not stand in a client's way."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    handler = Collector()
    log.consume("g", handler)

    log.append(events("a"))
    before = list(handler.batches)
    clock.advance()

    assert (before, handler.batches, log.committed("g")) == ([], [[0]], 0)


def test_long_backlogs_come_in_batches() -> None:
    """A consumer gets all that waits, a bounded batch at a time and in order."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    log.append(events(*["a"] * 250))
    handler = Collector()

    log.consume("g", handler)
    clock.advance()

    assert [len(batch) for batch in handler.batches] == [100, 100, 50]
    assert handler.offsets == list(range(250))


def test_a_group_begins_where_it_is_told_and_goes_on_where_it_was() -> None:
    """A new group starts at the oldest or the newest event; a known one after its committed offset."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    log.append(events("a", "b"))
    old, new, again = Collector(), Collector(), Collector()

    log.consume("old", old)
    consumer = log.consume("new", new, Start.NEWEST)
    clock.advance()
    begun = (log.committed("old"), log.committed("new"), log.committed("unknown"))
    log.append(events("c"))
    clock.advance()
    consumer.stop()
    log.append(events("d"))
    log.consume("new", again, Start.NEWEST)
    clock.advance()

    assert begun == (1, -1, -1)
    assert (old.offsets, new.offsets, again.offsets) == ([0, 1, 2, 3], [2], [3])


def test_a_failed_batch_comes_again_after_a_growing_pause() -> None:
    """A handler that raises gets the same batch, later and later, and nothing behind it is committed."""
    clock = TurnableClock()
    errors: list[tuple[str, str]] = []
    log = MemoryEventLog(clock.later, report=lambda group, error: errors.append((group, str(error))))
    handler = Collector(failures=2)
    log.consume("g", handler)
    log.append(events("a"))

    counts = []
    for seconds in (0.0, 0.09, 0.02, 0.18, 0.03):
        clock.advance(seconds)
        counts.append((len(handler.batches), log.committed("g")))

    assert counts == [(1, -1), (1, -1), (2, -1), (2, -1), (3, 0)]
    assert errors == [("g", "not now")] * 2


def test_a_failed_batch_comes_again_as_it_was() -> None:
    """What was appended since does not join the batch that failed: it comes behind it."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    handler = Collector(failures=2)
    log.consume("g", handler)
    log.append(events("a"))
    clock.advance()

    log.append(events("a"))
    clock.advance(1.0)

    assert handler.batches == [[0], [0], [0], [1]]


def test_a_handler_that_never_succeeds_is_not_called_in_a_loop() -> None:
    """The pause between attempts grows to half a minute and stays there."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    handler = Collector(failures=10**9)
    log.consume("g", handler)
    log.append(events("a"))

    clock.advance(3600.0)

    assert 120 <= len(handler.batches) <= 140


def test_members_of_a_group_divide_the_clients() -> None:
    """Each event goes to one member, all of a client's to the same one, and in order."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    one, two = Collector(), Collector()
    log.consume("g", one)
    log.consume("g", two)

    log.append(events(*(f"c{number % 10}" for number in range(100))))
    clock.advance()

    assert sorted(one.offsets + two.offsets) == list(range(100))
    assert one.offsets == sorted(one.offsets) and two.offsets == sorted(two.offsets)
    assert one.offsets and two.offsets
    assert not {offset % 10 for offset in one.offsets} & {offset % 10 for offset in two.offsets}
    assert log.committed("g") == 99


def test_the_slowest_member_holds_the_committed_offset() -> None:
    """What one member has not handled is not committed by the others; whoever takes over gets it."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    stuck, fine = Collector(failures=10**9), Collector()
    consumer = log.consume("g", stuck)
    log.consume("g", fine)
    log.append(events(*(f"c{number}" for number in range(20))))
    clock.advance()
    committed = log.committed("g")
    missed = set(stuck.offsets)

    consumer.stop()
    clock.advance(1.0)

    assert missed and committed < min(missed)
    assert set(fine.offsets) == set(range(20))
    assert log.committed("g") == 19


def test_one_batch_at_a_time_per_member() -> None:
    """While an asynchronous handler works on a batch it gets no other, and commits when it is done."""
    clock, hand = TurnableClock(), Hand()
    log = MemoryEventLog(clock.later, run=hand)
    log.consume("g", lambda batch: Pending())

    log.append(events("a"))
    clock.advance()
    log.append(events("a"))
    clock.advance()
    held = (len(hand.open), log.committed("g"))
    hand.open[0][0]()
    clock.advance()

    assert held == (1, -1)
    assert (len(hand.open), log.committed("g")) == (2, 0)


def test_an_awaitable_that_fails_brings_its_batch_again() -> None:
    """An asynchronous failure counts as a raise does."""
    clock, hand = TurnableClock(), Hand()
    log = MemoryEventLog(clock.later, run=hand)
    log.consume("g", lambda batch: Pending())
    log.append(events("a"))
    clock.advance()

    hand.open[0][1](RuntimeError("not now"))
    clock.advance(0.1)

    assert (len(hand.open), log.committed("g")) == (2, -1)


def test_a_newcomer_waits_for_batches_in_hand() -> None:
    """When clients change hands, the new member begins when the old has finished: order per client holds."""
    clock, hand = TurnableClock(), Hand()
    log = MemoryEventLog(clock.later, run=hand)
    log.consume("g", lambda batch: Pending())
    log.append(events("a", "b", "c", "d"))
    clock.advance()
    newcomer = Collector()

    log.consume("g", newcomer)
    log.append(events("a", "b", "c", "d"))
    clock.advance()
    before = list(newcomer.batches)
    hand.open[0][0]()
    clock.advance()

    assert before == []
    assert newcomer.offsets and set(newcomer.offsets) <= {4, 5, 6, 7}


def test_stop_answers_when_the_last_call_is_done() -> None:
    """Stopping a busy consumer answers what its runner made; an idle or stopped one is done at once."""
    clock, hand = TurnableClock(), Hand()
    log = MemoryEventLog(clock.later, run=hand)
    pending = Pending()
    consumer = log.consume("g", lambda batch: pending)
    idle = log.consume("other", lambda batch: None)
    log.append(events("a"))
    clock.advance()

    busy = consumer.stop()
    hand.open[0][0]()
    clock.advance()

    assert busy is pending
    assert (idle.stop(), consumer.stop(), log.committed("g")) == (None, None, 0)


def test_a_stopped_member_that_fails_leaves_its_batch_to_the_group() -> None:
    """What a leaving member could not handle comes to the next one."""
    clock, hand = TurnableClock(), Hand()
    log = MemoryEventLog(clock.later, run=hand)
    consumer = log.consume("g", lambda batch: Pending())
    log.append(events("a"))
    clock.advance()
    consumer.stop()
    heir = Collector()
    log.consume("g", heir)

    hand.open[0][1](RuntimeError("not now"))
    clock.advance()

    assert heir.offsets == [0]


def test_an_asynchronous_handler_needs_a_runner() -> None:
    """A log that can't run coroutines says so when one is handed in, not by losing events."""
    log = MemoryEventLog(TurnableClock().later)

    async def handler(batch: Sequence[Recorded]) -> None:
        raise AssertionError

    with pytest.raises(TypeError, match="no runner"):
        log.consume("g", handler)


def test_an_awaitable_nobody_runs_stops_its_consumer_with_an_error() -> None:
    """A handler that turns out to be asynchronous is taken out of its group, loudly, and commits nothing."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)

    async def later() -> None:
        raise AssertionError

    log.consume("g", lambda batch: later())
    log.append(events("a"))

    with pytest.raises(TypeError, match="no runner"):
        clock.advance()
    clock.advance()

    assert log.committed("g") == -1


def test_a_consumer_that_is_too_slow_is_told_what_it_missed() -> None:
    """Where the log has dropped events a group had not seen, the gap is reported and the group goes on."""
    clock = TurnableClock()
    errors: list[BaseException] = []
    log = MemoryEventLog(clock.later, retention=2, report=lambda group, error: errors.append(error))
    handler = Collector()
    log.consume("g", handler)
    clock.advance()

    log.append(events(*"abcde"))
    clock.advance()

    assert handler.offsets == [3, 4]
    assert [error.oldest for error in errors if isinstance(error, OffsetOutOfRange)] == [3]


ACTIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(0, 5)),
        st.tuples(st.just("join"), st.integers(0, 2)),
        st.tuples(st.just("leave"), st.integers(0, 5)),
        st.tuples(st.just("turn"), st.integers(0, 3)),
    ),
    max_size=40,
)


@given(actions=ACTIONS)
def test_no_event_is_lost_or_skipped_while_members_come_and_go(actions: list[tuple[str, int]]) -> None:
    """Every event is handled, each client's in order, whoever joins, leaves or fails in between."""
    clock = TurnableClock()
    log = MemoryEventLog(clock.later)
    handled: list[int] = []
    members = []

    def member(failures: int) -> Callable[[Sequence[Recorded]], None]:
        collector = Collector(failures)

        def handle(batch: Sequence[Recorded]) -> None:
            collector(batch)
            handled.extend(record.offset for record in batch)

        return handle

    appended: list[str] = []
    for action, number in actions:
        if action == "append":
            appended.append(f"c{number}")
            log.append(events(appended[-1]))
        elif action == "join":
            members.append(log.consume("g", member(number)))
        elif action == "leave" and members:
            members.pop(number % len(members)).stop()
        else:
            clock.advance(number * 0.1)
    log.consume("g", member(0))
    clock.advance(100.0)

    first_seen = list(dict.fromkeys(handled))
    assert sorted(first_seen) == list(range(len(appended)))
    for client_id in set(appended):
        own = [offset for offset in first_seen if appended[offset] == client_id]
        assert own == sorted(own)
    assert log.committed("g") == len(appended) - 1
