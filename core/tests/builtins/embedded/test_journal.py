"""The log while it is in use: when something counts as kept, and what becomes of a disk that is full or fails."""

from __future__ import annotations

import gc
import shutil
import sqlite3
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest
from twisted.internet.defer import Deferred
from twisted.logger import globalLogPublisher
from twisted.python.failure import Failure

from core_harness.open_files import open_files
from kinmqtt.builtins.embedded import Embedded, EmbeddedSettings, journal, segment
from kinmqtt.builtins.embedded.directory import DataDirectory
from kinmqtt.builtins.embedded.journal import (
    RETRY_S,
    SLICE_INTERVAL_S,
    SYNC_INTERVAL_S,
    WORKS_AGAIN_S,
    Journal,
)
from kinmqtt.builtins.embedded.records import CommitGroup, pack
from kinmqtt.builtins.embedded.segment import DataDirectoryError, Segment, name_of
from kinmqtt_spi.errors import NotConfigured, ServiceUnavailable
from kinmqtt_spi.memory.plugin import NODE, BareContext
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import HealthState
from kinmqtt_spi.services.queue import Append, Entry, Remove
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.services.session import OpenSession, StoredSession
from kinmqtt_spi.values import Message

T = TypeVar("T")


def group(number: int, payload: bytes = b"x") -> CommitGroup:
    """A group that retains a message."""
    return CommitGroup(retain=[RetainWrite(Message(f"t/{number}", payload), RetainVersion(1.0, 1, number))])


def topics(folder: Path) -> list[str]:
    """What is retained, by what the log says."""
    return sorted(write.message.topic for write in DataDirectory(folder).load().retained.iterate().writes)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def opened(folder: Path) -> set[int]:
    """The numbers of the segments of which this process has files open."""
    return {int(file.name[8:18]) for file in open_files(folder)}


def is_a_sync(call: Callable[[], object]) -> bool:
    return getattr(call, "__func__", None) is Segment.sync


def makes_a_segment(call: Callable[[], object]) -> bool:
    return isinstance(call, partial) and call.func is Segment


class SlowContext(BareContext):
    """A context whose thread makes some calls only when the test says so, in their order."""

    def __init__(self, holds: Callable[[Callable[[], object]], bool] = lambda call: False, **more: Any) -> None:
        super().__init__(**more)
        self.holds = holds
        self.held: list[tuple[Any, Deferred[Any]]] = []

    def in_thread(self, call: Callable[[], T]) -> Awaitable[T]:
        if not self.holds(call):
            return super().in_thread(call)
        made: Deferred[T] = Deferred()
        self.held.append((call, made))
        return made

    def proceed(self) -> None:
        """Make the call that has waited longest."""
        call, made = self.held.pop(0)
        try:
            result = call()
        except Exception:
            made.errback(Failure())
        else:
            made.callback(result)

    def fail(self, error: Exception) -> None:
        """Let the call that has waited longest fail."""
        self.held.pop(0)[1].errback(error)


def outcome(commit: Any) -> list[Any]:
    """What an awaitable comes to: empty until then, and an error in place of what it raises."""
    results: list[Any] = []
    wait = commit if isinstance(commit, Deferred) else Deferred.fromCoroutine(commit)
    wait.addBoth(lambda result: results.append(result.value if isinstance(result, Failure) else result))
    return results


def killed(log: Journal) -> Path:
    """The directory as a process leaves it that is killed at this moment."""
    folder = log._folder
    copy = folder.with_name(f"{folder.name}-killed")
    shutil.copytree(folder, copy)
    log.abandon()
    return copy


def begun(
    folder: Path,
    context: BareContext | None = None,
    *,
    fsync: bool = False,
    slices: Callable[[], Iterator[CommitGroup]] = lambda: iter(()),
    first: Sequence[Path] = (),
    number: int = 1,
) -> Journal:
    """A journal that is open."""
    made = Journal(folder, fsync, BareContext() if context is None else context, slices, first)
    outcome(made.open(number))
    return made


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few groups fill a segment."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 250)


def test_a_closed_log_is_plain_files(tmp_path: Path) -> None:
    """An orderly stop leaves the one segment that was written to, sealed, and nothing that was prepared."""
    log = begun(tmp_path)
    log.append(pack(group(1)))

    done = outcome(log.close())

    assert done == [None]
    assert names(tmp_path) == [name_of(1)]
    assert topics(tmp_path) == ["t/1"]
    with pytest.raises(ServiceUnavailable, match="is closed"):
        log.append(pack(group(2)))


def test_a_log_that_was_not_closed_is_there(tmp_path: Path) -> None:
    """What was kept before the process was killed is read at the next start."""
    log = begun(tmp_path)
    for number in range(3):
        log.append(pack(group(number)))

    left = killed(log)

    assert topics(left) == topics(tmp_path) == ["t/0", "t/1", "t/2"]


@pytest.mark.usefixtures("small_segments")
def test_a_full_segment_gives_way_to_the_next(tmp_path: Path) -> None:
    """Segments are left when they are large, sealed, and read in order; nothing is lost at a change."""
    log = begun(tmp_path)

    for number in range(12):
        log.append(pack(group(number, b"x" * 50)))
    size_bytes = log.size_bytes
    left = killed(log)

    unsealed = [name for name in names(left) if name.endswith("-wal")]
    used = DataDirectory(left).segments()
    assert len(used) > 4
    assert unsealed == [f"{each.name}-wal" for each in used[-2:]]
    assert topics(left) == sorted(f"t/{number}" for number in range(12))
    assert size_bytes == sum(len(pack(group(number, b"x" * 50))) for number in range(12))


@pytest.mark.usefixtures("small_segments")
def test_a_segment_is_used_on_until_the_next_is_made(tmp_path: Path) -> None:
    """A disk that is slow to make a new segment holds nobody up: the old one takes what comes."""
    context = SlowContext()
    log = Journal(tmp_path, False, context, lambda: iter(()), ())
    outcome(log.open(1))
    context.holds = makes_a_segment
    for number in range(8):
        log.append(pack(group(number, b"x" * 50)))
    before = names(tmp_path)

    context.proceed()
    log.append(pack(group(8)))
    log.append(pack(group(9)))

    assert name_of(3) not in before
    assert len(context.held) == 1
    log.abandon()
    assert topics(tmp_path) == [f"t/{number}" for number in range(10)]


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_can_not_be_made_is_tried_again(tmp_path: Path) -> None:
    """Where the disk refuses a new file the old one is used on, and a second later it is asked once more."""
    context = SlowContext()
    log = Journal(tmp_path, False, context, lambda: iter(()), ())
    context.holds = makes_a_segment
    opening = outcome(log.open(1))
    context.proceed()
    context.fail(OSError("no room"))
    for number in range(8):
        log.append(pack(group(number, b"x" * 50)))
        while context.held:
            context.fail(OSError("no room"))

    context.holds = lambda call: False
    context.clock.advance(RETRY_S)
    log.append(pack(group(8)))
    log.append(pack(group(9)))
    log.abandon()

    assert opening == [None]
    assert "no new segment can be created" in context.log.texts("error")[0]
    assert names(tmp_path)[:2] == [name_of(1), name_of(2)]
    assert topics(tmp_path) == [f"t/{number}" for number in range(10)]


def test_a_commit_waits_for_nobody(tmp_path: Path) -> None:
    """Without fsync a group is kept when it is appended; the disk is asked within a second, and only for news."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context)
    context.clock.advance(SYNC_INTERVAL_S)
    idle = len(context.held)

    answers = [log.append(pack(group(number))) for number in (1, 2)]
    context.clock.advance(SYNC_INTERVAL_S)
    asked = len(context.held)
    context.proceed()
    context.clock.advance(3 * SYNC_INTERVAL_S)

    assert answers == [None, None]
    assert (idle, asked, len(context.held)) == (0, 1, 0)
    log.abandon()


def test_a_slow_disk_is_not_asked_twice_at_once(tmp_path: Path) -> None:
    """While the disk is busy with one request there is no second; what came meanwhile is in the next."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context)
    log.append(pack(group(1)))
    context.clock.advance(SYNC_INTERVAL_S)
    log.append(pack(group(2)))
    context.clock.advance(5 * SYNC_INTERVAL_S)
    during = len(context.held)

    context.proceed()
    context.clock.advance(SYNC_INTERVAL_S)

    assert (during, len(context.held)) == (1, 1)
    log.abandon()


def test_a_closed_log_asks_the_disk_no_more(tmp_path: Path) -> None:
    """After the end no timer is left that would touch closed files."""
    context = BareContext()
    log = begun(tmp_path, context)
    log.append(pack(group(1)))
    outcome(log.close())

    context.clock.advance(10 * SYNC_INTERVAL_S)

    assert context.clock.pending() == 0
    assert context.log.texts("error") == []


def test_with_fsync_a_group_is_kept_when_the_disk_has_it(tmp_path: Path) -> None:
    """Nobody is told before the disk has answered, and one request serves all who came before it was made."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True)

    first = outcome(log.append(pack(group(1))))
    others = [outcome(log.append(pack(group(number)))) for number in (2, 3)]
    asked = len(context.held)
    context.proceed()
    after_one = [list(first), *map(list, others)]
    context.proceed()

    assert asked == 1
    assert after_one == [[None], [], []]
    assert [first, *others] == [[None]] * 3
    assert context.held == []
    log.abandon()


@pytest.mark.usefixtures("small_segments")
def test_with_fsync_the_segment_that_was_left_comes_first(tmp_path: Path) -> None:
    """A group that filled its segment is kept when the disk has that one, though another is in use by then."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True)

    result = outcome(log.append(pack(group(1, b"x" * 300))))
    [(first, _)] = context.held
    context.proceed()
    between = list(result)
    [(second, _)] = context.held
    context.proceed()

    assert [each.__self__.number for each in (first, second)] == [1, 2]
    assert (between, result) == ([], [None])
    log.abandon()


def test_a_disk_that_fails_fails_those_who_wait(tmp_path: Path) -> None:
    """Who waits for the request that failed is told so, and who came later too: nothing may overtake it."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True)
    early = outcome(log.append(pack(group(1))))
    context.proceed()
    waiting = outcome(log.append(pack(group(2))))
    late = outcome(log.append(pack(group(3))))

    context.fail(OSError(5, "Input/output error"))
    while context.held:
        context.proceed()
        context.clock.advance(SLICE_INTERVAL_S)

    assert early == [None]
    assert [type(each) for each in late] == [ServiceUnavailable]
    [error] = waiting
    assert isinstance(error, ServiceUnavailable)
    assert error.reason is ReasonCode.SERVER_UNAVAILABLE
    log.abandon()


def test_a_disk_that_failed_gets_everything_anew(tmp_path: Path) -> None:
    """What a disk has lost of a segment can't be known: what counts is told again in another, and that one goes."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True, slices=lambda: iter([group(7), group(8)]))
    outcome(log.append(pack(group(7))))

    context.fail(OSError(5, "Input/output error"))
    for _ in range(10):
        context.clock.advance(SLICE_INTERVAL_S)
        while context.held:
            context.proceed()

    assert "can't write: [Errno 5] Input/output error" in context.log.texts("error")[0]
    assert name_of(1) not in names(tmp_path)
    assert topics(killed(log)) == ["t/7", "t/8"]


@pytest.mark.usefixtures("small_segments")
def test_a_disk_that_fails_as_a_segment_is_left_fails_those_who_wait(tmp_path: Path) -> None:
    """A group whose own segment did not get to the disk is not kept, though the next segment did."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True)
    result = outcome(log.append(pack(group(1, b"x" * 300))))

    context.fail(OSError(5, "Input/output error"))
    while context.held:
        context.proceed()
        context.clock.advance(SLICE_INTERVAL_S)
    log.abandon()

    assert [type(each) for each in result] == [ServiceUnavailable]


@pytest.mark.usefixtures("small_segments")
def test_a_stop_waits_until_the_segment_that_was_left_is_closed(tmp_path: Path) -> None:
    """Whoever has the directory next finds plain files, and none that is in use."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context)
    log.append(pack(group(1, b"x" * 300)))
    log.append(pack(group(2)))

    stopped = outcome(log.close())
    before = (list(stopped), opened(tmp_path))
    context.proceed()

    assert before == ([], {1, 2, 3})
    assert (stopped, opened(tmp_path)) == ([None], set())
    assert names(tmp_path) == [name_of(1), name_of(2)]


@pytest.mark.usefixtures("small_segments")
def test_a_segment_that_a_failing_disk_leaves_behind_is_closed(tmp_path: Path) -> None:
    """Of what is written to no more nothing stays open: a disk that fails for long would use up all descriptors."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True, slices=lambda: iter([group(1)]))
    outcome(log.append(pack(group(1, b"x" * 300))))

    for _ in range(20):
        context.clock.advance(RETRY_S)
        while context.held:
            context.fail(OSError(5, "Input/output error"))

    current, prepared = log._current, log._next
    assert current is not None and prepared is not None
    assert current.number > 3
    assert opened(tmp_path) == {current.number, prepared.number}
    log.abandon()


def test_a_disk_that_failed_is_asked_again(tmp_path: Path) -> None:
    """Without fsync, too, what is not on the disk yet stays to be written, though nothing new comes."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context)
    log.append(pack(group(1)))
    context.clock.advance(SYNC_INTERVAL_S)

    context.fail(OSError(5, "Input/output error"))
    context.clock.advance(2 * SYNC_INTERVAL_S)
    log.abandon()

    assert "Input/output error" in context.log.texts("error")[0]
    assert len(context.held) == 1


def test_a_disk_that_fails_is_a_problem_until_it_answers(tmp_path: Path) -> None:
    """With fsync the store is not well because a group was appended, but when the disk has one."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True, slices=lambda: iter([group(1)]))
    outcome(log.append(pack(group(1))))

    context.fail(OSError(5, "Input/output error"))
    problem = log.problem
    log.abandon()

    assert problem is not None


def test_slices_that_were_not_kept_make_no_noise(tmp_path: Path) -> None:
    """A disk that goes on failing while everything is told anew is told of by its own error, and by no other."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True, slices=lambda: iter([group(1), group(2)]))
    result = outcome(log.append(pack(group(1))))
    noise: list[Any] = []
    observe: Any = noise.append
    globalLogPublisher.addObserver(observe)

    for _ in range(20):
        while context.held:
            context.fail(OSError(5, "Input/output error"))
        context.clock.advance(SLICE_INTERVAL_S)
    log.abandon()
    kinds = [type(each) for each in result]
    # Errors hold what was under way when they were raised.
    result.clear()
    context.log.lines.clear()
    del log
    gc.collect()
    globalLogPublisher.removeObserver(observe)

    assert kinds == [ServiceUnavailable]
    assert [event["log_format"] for event in noise if "log_failure" in event] == []


def test_a_full_disk_is_told_of_and_recovers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes to a full disk is told that a quota is exceeded; when there is room again, all is well."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    context = BareContext()
    log = begun(tmp_path, context)
    log.append(pack(group(1)))

    with pytest.raises(ServiceUnavailable) as caught:
        log.append(pack(group(2, b"x" * 100_000)))
    with pytest.raises(ServiceUnavailable):
        log.append(pack(group(3, b"x" * 100_000)))
    problem = log.problem
    log.append(pack(group(4)))
    at_once = context.log.texts("info")
    context.clock.advance(WORKS_AGAIN_S)

    assert at_once == []
    assert caught.value.reason is ReasonCode.QUOTA_EXCEEDED
    assert problem is not None
    assert problem.startswith(f"{tmp_path}: ")
    assert log.problem is None
    assert len(context.log.texts("error")) == 1
    assert context.log.texts("info") == ["the embedded store can write again"]
    log.abandon()
    assert topics(tmp_path) == ["t/1", "t/4"]


def test_a_disk_that_is_still_full_is_told_of_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small group that finds room between large ones does not mean that all is well."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    context = BareContext()
    log = begun(tmp_path, context)

    for number in range(10):
        with pytest.raises(ServiceUnavailable) as caught:
            log.append(pack(group(number, b"x" * 100_000)))
        log.append(pack(group(number)))
        context.clock.advance(WORKS_AGAIN_S / 2)

    assert str(caught.value) == "embedded: database or disk is full"
    assert len(context.log.texts("error")) == 1
    assert context.log.texts("info") == []
    log.abandon()


def test_a_segment_that_can_not_be_sealed_at_the_end_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop with a full disk goes well: what was kept is in the write-ahead log, and is read from there."""
    context = BareContext()
    log = begun(tmp_path, context)
    log.append(pack(group(1)))

    def full(segment: Segment) -> None:
        segment.abandon()
        raise sqlite3.OperationalError("database or disk is full")

    monkeypatch.setattr(Segment, "seal", full)
    done = outcome(log.close())

    assert done == [None]
    [said] = context.log.texts("warn")
    assert (
        said
        == f"{tmp_path / name_of(1)} leaves its write-ahead log, which the next start reads: database or disk is full"
    )
    assert topics(tmp_path) == ["t/1"]


def test_a_start_on_a_full_disk_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The directory is named, and that it needs room; nothing that was in it is touched."""
    first, _ = started(tmp_path / "data")
    first.retain_store().put([RetainWrite(Message("t", b"x"), RetainVersion(1.0, 1, 1))])
    outcome(first.stop())
    monkeypatch.setattr(segment, "_LAYOUT", ("PRAGMA max_page_count = 1", *segment._LAYOUT))
    context = BareContext(settings=EmbeddedSettings(), data=tmp_path / "data")
    plugin = Embedded()
    plugin.configure(context)
    plugin.session_store()

    [error] = outcome(plugin.start(context))
    outcome(plugin.stop())

    assert isinstance(error, DataDirectoryError)
    assert str(error).startswith(f"{tmp_path / 'data'} can't be written to: database or disk is full; ")
    assert str(error).endswith("free space and start again")
    assert names(tmp_path / "data") == [name_of(1), "lock"]


def test_other_errors_are_no_quota(tmp_path: Path) -> None:
    """A database that can't be written to for another reason is unavailable."""
    log = begun(tmp_path)
    log._current._connection.execute("DROP TABLE log")  # type: ignore[union-attr]

    with pytest.raises(ServiceUnavailable, match="no such table") as caught:
        log.append(pack(group(1)))

    assert caught.value.reason is ReasonCode.SERVER_UNAVAILABLE
    log.abandon()


def finish(context: BareContext) -> None:
    """Turn the clock until slices have been told."""
    for _ in range(100):
        context.clock.advance(SLICE_INTERVAL_S)


def test_everything_is_told_anew_and_the_old_goes(tmp_path: Path) -> None:
    """Slices go to a new segment, between what is written meanwhile; when the last is there, what was before goes."""
    context = BareContext()
    log = begun(tmp_path, context, slices=lambda: iter([group(1), group(2)]))
    for number in range(6):
        log.append(pack(group(number)))

    done = outcome(log.compact())
    log.append(pack(group(7)))
    context.clock.advance(SLICE_INTERVAL_S)
    log.append(pack(group(8)))
    early = (list(done), name_of(1) in names(tmp_path))
    finish(context)
    log.append(pack(group(9)))

    assert (early, done) == (([], True), [None])
    assert name_of(1) not in names(tmp_path)
    assert topics(killed(log)) == ["t/1", "t/2", "t/7", "t/8", "t/9"]


@pytest.mark.usefixtures("small_segments")
def test_what_is_told_anew_may_fill_segments(tmp_path: Path) -> None:
    """Where the slices need more than one segment, all of them count, and none that came before."""
    context = BareContext()
    log = begun(tmp_path, context, slices=lambda: iter([group(number, b"x" * 100) for number in range(6)]))
    log.append(pack(group(9)))

    outcome(log.compact())
    finish(context)
    log.abandon()

    assert len(DataDirectory(tmp_path).segments()) > 2
    assert topics(tmp_path) == [f"t/{number}" for number in range(6)]


def test_segments_of_earlier_starts_go_too(tmp_path: Path) -> None:
    """Many short lives leave many segments, which are asked to be told anew, and are one afterwards."""
    for number in range(1, 11):
        log = begun(tmp_path, number=number)
        log.append(pack(group(number)))
        outcome(log.close())
    context = BareContext()
    old = DataDirectory(tmp_path).segments()

    log = begun(tmp_path, context, slices=lambda: iter([group(1)]), first=old, number=11)
    wanted = log.wants_compaction(0)
    outcome(log.compact())
    again = log.wants_compaction(0)
    finish(context)

    assert (wanted, again, log.wants_compaction(0)) == (True, False, False)
    assert log.size_bytes < 100_000
    outcome(log.close())
    assert len(names(tmp_path)) <= 2
    assert topics(tmp_path) == ["t/1"]


@pytest.mark.usefixtures("small_segments")
def test_a_log_that_holds_too_much_wants_to_be_told_anew(tmp_path: Path) -> None:
    """What counts may stand in the log twice, and a segment's worth besides, before it is worth the work."""
    log = begun(tmp_path)
    for number in range(6):
        log.append(pack(group(number, b"x" * 50)))
    size = log.size_bytes

    wants = [log.wants_compaction(live) for live in (0, (size - 252) // 2, (size - 248) // 2, size)]

    assert wants == [True, True, False, False]
    log.abandon()


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize(("live_bytes", "wants"), [(3000, False), (1500, True), (0, True)])
def test_what_was_told_anew_and_is_gone_makes_room(tmp_path: Path, live_bytes: int, wants: bool) -> None:
    """A directory follows what counts when that becomes less, and not only what it once was."""
    context = BareContext()
    held = [group(number, b"%050d" % number) for number in range(20)]
    log = begun(tmp_path, context, slices=lambda: iter(held))
    log.wants_compaction(3000)
    outcome(log.compact())
    finish(context)
    for number in range(10):
        log.append(pack(group(number, b"%050d" % number)))

    assert log.size_bytes < 2 * sum(len(pack(each)) for each in held) + journal.SEGMENT_BYTES
    assert log.wants_compaction(live_bytes) is wants
    log.abandon()


def test_a_disk_that_is_full_meanwhile_leaves_what_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where not everything can be told anew, the old segments stay and count; for a minute it is not tried again."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 100)
    context = BareContext()
    log = begun(tmp_path, context, slices=lambda: iter([group(1), group(2, b"x" * 100_000)]))
    log.append(pack(group(5)))

    done = outcome(log.compact())
    finish(context)
    wants = [log.wants_compaction(-1000)]
    context.clock.advance(60 * RETRY_S)
    wants.append(log.wants_compaction(-1000))

    assert (done, wants) == ([None], [False, True])
    assert "could not be compacted" in context.log.texts("error")[-1]
    assert topics(killed(log)) == ["t/1", "t/5"]


def test_a_stop_does_not_wait_for_all_slices(tmp_path: Path) -> None:
    """Who stops while everything is told anew waits for one slice; the old segments stay and count."""
    context = BareContext()
    log = begun(tmp_path, context, slices=lambda: map(group, range(1000)))
    log.append(pack(group(5000)))
    outcome(log.compact())
    context.clock.advance(3 * SLICE_INTERVAL_S)

    done = outcome(log.close())
    context.clock.advance(SLICE_INTERVAL_S)

    assert done == [None]
    assert names(tmp_path) == [name_of(1), name_of(2)]
    found = topics(tmp_path)
    assert "t/5000" in found
    assert 2 < len(found) < 10


def test_a_second_wish_to_tell_anew_joins_the_first(tmp_path: Path) -> None:
    """Everything is told once at a time, however often it is asked for."""
    context = BareContext()
    log = begun(tmp_path, context, slices=lambda: iter([group(1)]))

    first, second = log.compact(), log.compact()
    finish(context)

    assert first is second
    log.abandon()
    assert DataDirectory(tmp_path).load().groups == 1


def started(folder: Path, settings: EmbeddedSettings | None = None) -> tuple[Embedded, BareContext]:
    """The plugin as a broker starts it."""
    context = BareContext(settings=EmbeddedSettings() if settings is None else settings, data=folder)
    plugin = Embedded()
    plugin.configure(context)
    plugin.session_store(), plugin.queue_store(), plugin.retain_store(), plugin.event_log()
    assert outcome(plugin.start(context)) == [None]
    return plugin, context


def work(plugin: Embedded, context: BareContext, turns: int) -> None:
    """Turns of a broker that has little to remember, and says much."""
    sessions, queues, retained = plugin.session_store(), plugin.queue_store(), plugin.retain_store()
    epochs = {who: sessions.claim(who, NODE).epoch for who in "abc"}  # type: ignore[union-attr]
    sessions.apply([OpenSession(epoch, StoredSession(who, 100)) for who, epoch in epochs.items()])
    sessions.commit()
    for number in range(1, turns + 1):
        message = Message("t", b"x" * 20)
        queues.apply([Append(who, epoch, Entry(number, message, 1)) for who, epoch in epochs.items()])
        if number > 2:
            queues.apply([Remove("a", epochs["a"], number - 2)])
        if number < turns:
            queues.apply([Remove("b", epochs["b"], number)])
        retained.put([RetainWrite(message, RetainVersion(context.clock.now(), 1, number))])
        queues.commit()
        context.clock.advance(SLICE_INTERVAL_S)


def held(plugin: Embedded) -> list[object]:
    """What the plugin's stores say they hold."""
    sessions, queues, retained = plugin.session_store(), plugin.queue_store(), plugin.retain_store()
    return [
        {stored.client_id: (epoch, stored) for epoch, stored in sessions.iterate().sessions},  # type: ignore[union-attr]
        [(queues.load(who), queues.read(who, 0, 10_000)) for who in "abc"],
        queues.totals(),
        retained.iterate(),
    ]


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("durability", ["commit", "fsync"])
def test_a_store_that_is_long_in_use_stays_small(
    tmp_path: Path, durability: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The plugin tells everything anew by itself, while it is written to, and reads the same after a crash."""
    monkeypatch.setattr("kinmqtt.builtins.embedded.image.SLICE_BYTES", 500)
    monkeypatch.setattr("kinmqtt.builtins.embedded.image._PAGE", 2)
    plugin, context = started(tmp_path / "data", EmbeddedSettings(durability=durability))

    work(plugin, context, 100)
    before = held(plugin)
    numbers = [segment.number_of(path) for path in (tmp_path / "data").glob("*.sqlite3")]
    again, later = started(killed(plugin._journal))  # type: ignore[arg-type]
    plugin._directory.close()  # type: ignore[union-attr]

    assert min(numbers) > 3
    assert context.log.texts("error") == []
    assert held(again) == before
    assert "3 sessions, 1 retained messages" in later.log.texts("info")[0]
    assert outcome(again.stop()) == [None]


def test_an_orderly_stop_keeps_what_is_gathered(tmp_path: Path) -> None:
    """What was handed over in the last turn is kept, the directory is free, and holds plain files."""
    plugin, _ = started(tmp_path / "data")
    plugin.retain_store().put([RetainWrite(Message("t", b"x"), RetainVersion(1.0, 1, 1))])

    stopped = outcome(plugin.stop())

    assert stopped == [None]
    assert names(tmp_path / "data") == [name_of(1), "lock"]
    again, _ = started(tmp_path / "data")
    assert again.retain_store().count() == 1
    outcome(again.stop())


def test_a_start_says_what_is_lost_at_the_end(tmp_path: Path) -> None:
    """What a loss of power may have taken keeps no broker from its start, which says so once; then it is gone."""
    (tmp_path / "data").mkdir()
    log = begun(tmp_path / "data")
    for number in range(3):
        log.append(pack(group(number)))
    left = killed(log)
    wal = left / f"{name_of(1)}-wal"
    with wal.open("r+b") as file:
        file.seek(-100, 2)
        file.write(b"\xff" * 10)

    plugin, context = started(left)
    outcome(plugin.stop())
    again, later = started(left)
    outcome(again.stop())

    [said] = context.log.texts("warn")
    assert f"{left / name_of(1)}: 1 commits at its end can't be read" in said
    assert plugin.retain_store().count() == again.retain_store().count() == 2
    assert later.log.texts("warn") == []


def test_a_start_says_where_others_can_read(tmp_path: Path) -> None:
    """Once, with what to do; the broker's own files are its user's alone."""
    first, quiet = started(tmp_path / "data")
    first.retain_store().put([RetainWrite(Message("t", b"x"), RetainVersion(1.0, 1, 1))])
    outcome(first.stop())
    (tmp_path / "data" / name_of(1)).chmod(0o644)

    second, told = started(tmp_path / "data")
    outcome(second.stop())

    assert quiet.log.texts("warn") == []
    [said] = told.log.texts("warn")
    assert said.startswith(f"{tmp_path / 'data' / name_of(1)} can be read by others: `chmod go= ")


def test_a_stop_with_a_full_disk_gives_the_directory_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What can't be kept at the end is told of; the files are closed all the same, and the directory is free."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    plugin, _ = started(tmp_path / "data")
    plugin.retain_store().put([RetainWrite(Message("t", b"x" * 100_000), RetainVersion(1.0, 1, 1))])

    [told] = outcome(plugin.stop())
    others = DataDirectory(tmp_path / "data")
    try:
        others.open()
    finally:
        others.close()
        plugin._directory.close()  # type: ignore[union-attr]

    assert isinstance(told, ServiceUnavailable)
    assert names(tmp_path / "data") == ["lock"]


def test_the_plugin_says_how_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full makes the plugin unhealthy, with the reason, until it takes something again."""
    monkeypatch.setattr(segment, "_SET_UP", (*segment._SET_UP, "PRAGMA max_page_count = 16"))
    plugin, _ = started(tmp_path / "data")
    store = plugin.retain_store()
    healths = [plugin.health()]

    for size in (100_000, 1):
        store.put([RetainWrite(Message("t", b"x" * size), RetainVersion(1.0, 1, size))])
        try:
            store.commit()
        except ServiceUnavailable:
            pass
        healths.append(plugin.health())
    outcome(plugin.stop())

    assert [health.state for health in healths] == [HealthState.HEALTHY, HealthState.FAILED, HealthState.HEALTHY]
    assert "full" in healths[1].text
    assert plugin.reload(EmbeddedSettings(durability="fsync")) == ("durability: a change needs a restart",)
    assert plugin.reload(EmbeddedSettings()) == ()


def test_a_plugin_that_nobody_uses_takes_no_directory(tmp_path: Path) -> None:
    """Where other stores were chosen no directory is made, and without one the plugin says that it can't act."""
    context = BareContext(settings=EmbeddedSettings(), data=tmp_path / "data")
    plugin = Embedded()
    plugin.configure(context)

    started = outcome(plugin.start(context))
    stopped = outcome(plugin.stop())

    assert (started, stopped, names(tmp_path)) == ([None], [None], [])
    with pytest.raises(NotConfigured):
        Embedded().configure(BareContext(settings=EmbeddedSettings()))


def test_starts_that_nothing_comes_of_leave_nothing(tmp_path: Path) -> None:
    """However often a broker is started and stopped, the directory does not grow by it."""
    for _ in range(5):
        plugin, _ = started(tmp_path / "data")
        [told] = outcome(plugin.stop())
        assert told is None

    assert names(tmp_path / "data") == ["lock"]


def test_what_was_told_anew_is_not_told_again_for_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log of many segments that all count comes to rest, whatever is thought of how much counts."""
    monkeypatch.setattr(journal, "SEGMENT_BYTES", 10_000)
    context = BareContext()
    everything = [group(n, b"x" * 6_000) for n in range(30)]
    log = Journal(tmp_path, False, context, lambda: iter(everything), [])
    outcome(Deferred.fromCoroutine(log.open(1)))
    log.append(pack(everything[0]))

    done = outcome(log.compact())
    context.clock.advance(60)
    wanted = []
    for _ in range(5):
        log.append(pack(CommitGroup(floor=1)))
        wanted.append(log.wants_compaction(0))

    assert done == [None]
    assert log._told_segments > journal.MOST_SEGMENTS
    assert wanted == [False] * 5
    log.abandon()


def test_a_disk_that_failed_meanwhile_keeps_what_was_told_before(tmp_path: Path) -> None:
    """Segments are removed only where the disk has all that was told anew in their place."""
    context = SlowContext(is_a_sync)
    log = begun(tmp_path, context, fsync=True)
    early = outcome(log.append(pack(group(1))))
    context.proceed()
    log.compact()
    outcome(log.append(pack(group(2))))
    context.clock.advance(1)
    before = names(tmp_path)

    context.fail(OSError(5, "Input/output error"))
    for _ in range(3):
        context.clock.advance(SLICE_INTERVAL_S)
        if context.held:
            context.proceed()

    assert early == [None]
    assert name_of(1) in before
    assert name_of(1) in names(tmp_path)
    log.abandon()
