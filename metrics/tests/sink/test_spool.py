"""The queue and its writer: published lines are the records that were taken, in order, once, without a gap."""

from __future__ import annotations

import errno
import json
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from tempfile import mkdtemp

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kinmqtt_metrics import line_writer
from kinmqtt_metrics.disk_writer import DiskWriter
from kinmqtt_metrics.landing import published
from kinmqtt_metrics.line_writer import WriterThread
from kinmqtt_metrics.record import Record
from kinmqtt_metrics.segments import Disk, InUse, Segment, recover
from kinmqtt_metrics.spool import RECORD_BYTES, Figures, Spool
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.metrics import MetricRegistry
from metrics_harness.broken_disk import BrokenDisk, left_open, records

NODE, BOOT = "n", "00000000c0ffee01"


class Scene:
    """A writer without a thread, whose clock stands still."""

    def __init__(self, landing: Path, limit: int = 1000, disk: BrokenDisk | None = None) -> None:
        """``limit`` in records."""
        self.landing = landing
        self.clock = TurnableClock()
        self.disk = BrokenDisk() if disk is None else disk
        self.figures = Figures(MetricRegistry())
        self.spool = Spool(limit * RECORD_BYTES, self.figures)
        self.writer = DiskWriter(
            self.spool, self.disk, landing, NODE, BOOT, lambda: self.clock.now(), self.clock.monotonic
        )
        self.taken: list[int] = []
        self.number = 0

    def offer(self, times: int = 1) -> None:
        """Offer records, each with a number of its own."""
        for _ in range(times):
            self.number += 1
            if self.spool.offer(self.number, {"kind": "gauge", "number": self.number}):
                self.taken.append(self.number)

    def finish(self) -> None:
        """Write all, and publish it."""
        while self.writer.step():
            pass
        self.writer.publish()

    def dropped(self) -> dict[str, int]:
        """Reasons for which something was dropped."""
        return {reason: counter.value for reason, counter in self.figures.dropped.items() if counter.value}


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """Nothing waits yet."""
    return Scene(tmp_path)


def numbers(landing: Path) -> list[int]:
    """The records' own numbers."""
    return [record["number"] for record in records(landing)]


def test_a_record_is_whole(scene: Scene) -> None:
    """What was handed over, and who says it: the keys of every line."""
    scene.spool.offer(5, {"kind": "event", "name": "connected", "client": "ä\n\u2028\ud800", "payload": b"\x00\xff"})
    scene.finish()

    [path] = published(scene.landing)
    assert path.read_bytes().count(b"\n") == 1
    assert path.read_bytes().isascii()
    assert records(scene.landing) == [
        {"v": 1, "t": 5, "node": NODE, "boot": BOOT, "seq": 1}
        | {"kind": "event", "name": "connected", "client": "ä\n\u2028\ud800", "payload": "AP8="}
    ]


def test_what_no_line_can_say_is_dropped_and_takes_no_number(scene: Scene) -> None:
    """One unfit record must not hold up those behind it."""
    scene.offer()
    scene.spool.offer(0, {"kind": "gauge", "number": float("nan")})
    scene.offer()
    scene.finish()

    assert [record["seq"] for record in records(scene.landing)] == [1, 2]
    assert scene.dropped() == {"unfit": 1}
    assert scene.spool.waiting_bytes == 0


def test_nothing_is_taken_beyond_the_bound(tmp_path: Path) -> None:
    """Whole records are dropped and counted; when something was written there is room again."""
    scene = Scene(tmp_path, limit=10)
    scene.offer(15)
    scene.writer.step()
    scene.offer(1)
    scene.finish()

    assert numbers(tmp_path) == [*range(1, 11), 16]
    assert scene.dropped() == {"queue_full": 5}


def test_what_is_long_counts(tmp_path: Path) -> None:
    """Captured payloads are held in memory, too."""
    scene = Scene(tmp_path, limit=10)

    assert scene.spool.offer(1, {}, 9 * RECORD_BYTES)
    assert not scene.spool.offer(2, {})


def test_the_writer_is_called_when_much_waits(tmp_path: Path) -> None:
    """Once, when half is full: calling it costs more than handing over."""
    scene = Scene(tmp_path, limit=10)
    scene.offer(5)
    before = scene.spool.news.is_set()
    scene.offer(1)

    assert (before, scene.spool.news.is_set()) == (False, True)
    scene.spool.news.clear()
    scene.offer(3)
    assert not scene.spool.news.is_set()


def test_a_segment_is_published_when_it_is_old_enough(scene: Scene) -> None:
    """As settings say; what comes then is in the next one."""
    scene.writer.roll_s = 5.0
    scene.offer()
    scene.writer.turn()
    scene.clock.advance(4.9)
    scene.writer.turn()
    early = published(scene.landing)
    scene.clock.advance(0.1)
    scene.offer()
    scene.writer.turn()

    assert early == []
    assert numbers(scene.landing) == [1]
    assert len(left_open(scene.landing)) == 1


def test_a_segment_is_published_when_it_is_large_enough(scene: Scene) -> None:
    """A burst is handed over at once."""
    scene.writer.roll_bytes = 200
    scene.offer(200)
    for _ in range(10):
        scene.writer.turn()

    assert numbers(scene.landing) == list(range(1, 201))
    assert len(published(scene.landing)) > 1


def test_a_quiet_broker_makes_no_segments(scene: Scene) -> None:
    """Nothing to say is no file."""
    for _ in range(10):
        scene.clock.advance(5)
        scene.writer.turn()

    assert list(scene.landing.iterdir()) == []


def test_a_clock_that_is_set_back_changes_the_date_alone(scene: Scene) -> None:
    """Segments roll by a clock that does not go back, and no record is lost or told twice."""
    for step_s in (0.0, -864_000.0, 864_000.0):
        scene.clock.step(step_s)
        scene.offer()
        scene.writer.turn()
        scene.clock.advance(5)
        scene.writer.turn()

    assert numbers(scene.landing) == [1, 2, 3]
    assert sorted(path.parent.name for path in published(scene.landing)) == [
        "date=2023-11-04",
        "date=2023-11-14",
        "date=2023-11-14",
    ]


# A disk that is full, or fails


def test_a_full_disk_is_told_and_waited_for(tmp_path: Path) -> None:
    """What was taken stays, what comes on top is dropped as such, and writing goes on when there is room."""
    scene = Scene(tmp_path, limit=10)
    scene.disk.room_bytes = 150
    scene.offer(10)
    scene.writer.turn()
    told = scene.writer.trouble
    scene.offer(3)
    scene.disk.room_bytes = None
    scene.writer.turn()
    scene.offer(1)
    scene.finish()

    assert "No space left" in told
    assert scene.dropped() == {"disk_full": 3}
    assert scene.figures.failures.value == 1
    assert numbers(tmp_path) == [*range(1, 11), 14]
    assert [record["seq"] for record in records(tmp_path)] == list(range(1, 12))
    assert scene.writer.trouble == ""


def test_room_is_kept_free(scene: Scene) -> None:
    """Below the limit nothing is written, but what was is published: that takes no room."""
    scene.writer.keep_free_bytes = 1000
    scene.disk.free = 5000
    scene.offer()
    scene.writer.turn()
    scene.disk.free = 1010
    scene.offer()
    scene.clock.advance(5)
    scene.writer.turn()
    meanwhile = numbers(scene.landing), scene.writer.trouble
    scene.disk.free = 5000
    scene.finish()

    assert meanwhile[0] == [1]
    assert "less than the 1000 bytes are free that keep_free_bytes asks for" in meanwhile[1]
    assert numbers(scene.landing) == [1, 2]
    assert scene.figures.failures.value == 0


def test_a_device_without_room_fails_like_a_full_disk(tmp_path: Path) -> None:
    """The system's own word: /dev/full takes nothing."""

    class Full(BrokenDisk):
        def write(self, fd: int, data: bytes | memoryview) -> int:
            with open("/dev/full", "wb", buffering=0) as full:
                return full.write(data)

    scene = Scene(tmp_path, disk=Full())
    scene.offer(2)
    scene.writer.turn()
    trouble = scene.writer.trouble
    scene.writer._disk = BrokenDisk()
    scene.writer._segment._disk = BrokenDisk()  # type: ignore[union-attr]
    scene.finish()

    assert "No space left on device" in trouble
    assert numbers(tmp_path) == [1, 2]


def test_a_landing_folder_that_is_removed_comes_back(scene: Scene) -> None:
    """Whoever removes everything loses what was published, and the broker goes on."""
    scene.writer.keep_free_bytes = 1
    scene.offer()
    scene.finish()
    [path] = published(scene.landing)
    path.unlink()
    path.parent.rmdir()
    scene.landing.rmdir()
    scene.offer()
    scene.finish()

    assert numbers(scene.landing) == [2]


def test_nothing_is_added_to_what_readers_may_see(scene: Scene) -> None:
    """Where publishing failed half-way, also before its time, it is carried out before anything else is written."""
    scene.offer()
    scene.writer.step()
    scene.disk.fails = lambda call: errno.EIO if call == "sync_folder" else None
    with pytest.raises(OSError):
        scene.writer.publish()
    [path] = published(scene.landing)
    before = path.read_bytes()
    scene.disk.fails = lambda call: None
    scene.offer()
    scene.finish()

    assert path.read_bytes() == before
    assert numbers(scene.landing) == [1, 2]


class Writing(RuleBasedStateMachine):
    """Any order of offers, turns, failures and deaths."""

    folder: Path

    @initialize(limit=st.integers(1, 300))
    def begin(self, limit: int) -> None:
        """A new landing folder."""
        self.landing = Path(mkdtemp(dir=self.folder))
        self.scene = Scene(self.landing, limit)
        self.scene.writer.roll_bytes = 5000

    @rule(times=st.integers(1, 150))
    def offer(self, times: int) -> None:
        """Records come."""
        self.scene.offer(times)

    @rule(pause_s=st.sampled_from([0.0, 1.0, 5.0]), step_s=st.sampled_from([0.0, 0.0, -100_000.0, 100_000.0]))
    def turn(self, pause_s: float, step_s: float) -> None:
        """The thread does something, after a while."""
        self.scene.clock.advance(pause_s)
        self.scene.clock.step(step_s)
        self.scene.writer.turn()

    @rule(
        calls=st.sets(st.sampled_from(["open", "write", "truncate", "sync", "rename", "make_folder", "sync_folder"])),
        number=st.sampled_from([errno.EIO, errno.ENOSPC, errno.ENOENT]),
    )
    def fail(self, calls: set[str], number: int) -> None:
        """From now on some calls fail; where there are none, all is well again."""
        self.scene.disk.fails = lambda call: number if call in calls else None

    @rule(room_bytes=st.one_of(st.none(), st.integers(0, 10_000)))
    def room(self, room_bytes: int | None) -> None:
        """The disk is nearly full, or is not."""
        self.scene.disk.room_bytes = room_bytes

    @rule()
    def intrude(self) -> None:
        """Another broker of the name starts, whose lock was removed: it leaves alone what is being written."""
        before = left_open(self.landing)
        with suppress(InUse):
            recover(Disk(), self.landing, NODE, self.scene.clock.now, lambda path, error: None)
        assert left_open(self.landing) == before

    @invariant()
    def what_is_published_was_taken(self) -> None:
        """At any time: the first of what was taken, each once, in order."""
        if hasattr(self, "scene"):
            found = records(self.landing)
            assert [record["number"] for record in found] == self.scene.taken[: len(found)]
            assert [record["seq"] for record in found] == list(range(1, len(found) + 1))

    @invariant()
    def memory_is_bounded(self) -> None:
        """Nothing waits beyond the bound."""
        if hasattr(self, "scene"):
            assert 0 <= self.scene.spool.waiting_bytes <= self.scene.spool.limit_bytes

    def teardown(self) -> None:
        """In the end all is well, and all that was taken is there; or the broker dies, and its next life looks."""
        if not hasattr(self, "scene"):
            return
        scene = self.scene
        scene.disk.fails = lambda call: None
        scene.disk.room_bytes = None
        if scene.number % 2:
            scene.finish()
            expected = scene.taken
        else:
            if scene.writer._segment is not None:
                scene.writer._segment.close()
            recover(scene.disk, self.landing, NODE, scene.clock.now, lambda path, error: None)
            # Whole lines of a write that failed may be there as well, where the disk would not cut them.
            found = records(self.landing)
            assert len(found) >= scene.figures.written.value
            expected = scene.taken[: len(found)]
        found = records(self.landing)
        assert [record["number"] for record in found] == expected
        assert [record["seq"] for record in found] == list(range(1, len(found) + 1))
        assert len(scene.taken) + sum(scene.dropped().values()) == scene.number


def test_published_lines_are_the_records_that_were_taken(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever fails, in whatever order: no gap, no double, none of them in another order, none lost in silence."""
    Writing.folder = tmp_path_factory.mktemp("writing")
    machine = Writing.TestCase
    machine.settings = settings(
        max_examples=80, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
    )
    machine("runTest").runTest()


# The thread


@pytest.fixture
def real(tmp_path: Path) -> Scene:
    """A scene whose thread has a clock of its own."""
    return Scene(tmp_path, limit=100_000)


def test_the_thread_writes_all_that_was_taken(real: Scene) -> None:
    """From the first record to what was offered just before the end."""
    thread = WriterThread(real.writer, real.clock.monotonic)
    thread.start()
    for _ in range(50):
        real.offer(100)
    thread.end(30.0)
    ended = thread.join()

    assert ended and thread.error == ""
    assert numbers(real.landing) == list(range(1, 5001))
    assert [record["seq"] for record in records(real.landing)] == list(range(1, 5001))
    assert left_open(real.landing) == []


def test_after_the_end_nothing_is_taken(real: Scene) -> None:
    """What comes too late is dropped, and counted."""
    thread = WriterThread(real.writer, real.clock.monotonic)
    thread.start()
    thread.end(30.0)
    thread.join()

    assert not real.spool.offer(1, {})
    assert sum(real.dropped().values()) == 1


def test_the_end_is_not_held_up_by_a_disk_that_fails(real: Scene) -> None:
    """What is left is counted; what was written stays for the next start."""
    real.offer(3)
    real.writer.turn()
    real.disk.fails = lambda call: errno.EIO if call in ("write", "sync") else None
    real.offer(2)
    thread = WriterThread(real.writer, real.clock.monotonic)
    thread.start()
    real.clock.advance(0)
    thread.end(0.0)
    ended = thread.join()
    thread.count_left()
    recover(BrokenDisk(), real.landing, NODE, real.clock.now, lambda path, error: None)

    assert ended
    assert real.dropped() == {"stopped": 2}
    assert numbers(real.landing) == [1, 2, 3]


def test_a_disk_that_does_not_answer_is_not_waited_for(real: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that hangs holds up the broker's end no longer than the limit."""
    released, inside = threading.Event(), threading.Event()

    class Hanging(BrokenDisk):
        def sync(self, fd: int) -> None:
            inside.set()
            released.wait(30)

    monkeypatch.setattr(line_writer, "RETRY_S", 0.05)
    real.writer._disk = Hanging()
    real.offer()
    thread = WriterThread(real.writer, real.clock.monotonic)
    thread.start()
    thread.end(0.05)
    ended = thread.join()
    hung = inside.wait(30)
    released.set()

    assert hung
    assert not ended


def test_an_error_nobody_thought_of_is_told(real: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that is gone must not look like one that has nothing to do."""

    def broken(self: Segment, data: bytes) -> None:
        raise ZeroDivisionError("by chance")

    monkeypatch.setattr(Segment, "append", broken)
    real.offer()
    thread = WriterThread(real.writer, real.clock.monotonic)
    thread.start()
    thread.end(30.0)
    thread.join()

    assert thread.error == "ZeroDivisionError: by chance"


@pytest.mark.parametrize("where", ["_encoded", "_write", "_ENCODE"])
def test_where_the_thread_is_gone_nothing_is_taken_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """What it had in hand, what waited and what comes are dropped, and counted as what could not be written."""
    scene = Scene(tmp_path, limit=1000)

    def broken(*_: object) -> None:
        raise MemoryError("by chance")

    if where == "_ENCODE":
        monkeypatch.setattr(line_writer, where, broken)
    else:
        monkeypatch.setattr(DiskWriter, where, broken)
    scene.offer(100)
    thread = WriterThread(scene.writer, scene.clock.monotonic)
    thread._run()
    counted_by_itself = scene.dropped()
    for _ in range(2):
        thread.count_left()
    scene.offer(7)
    scene.spool.limit(1 << 30)
    scene.offer(3)

    assert counted_by_itself == {}, "it would count at once with who offers"
    assert scene.dropped() == {"write_failed": 110}
    assert scene.spool.waiting_bytes == 0


@pytest.mark.parametrize("is_ended", [True, False])
def test_a_record_that_comes_as_the_thread_goes_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_ended: bool
) -> None:
    """It was looked at whether there is room, and when it is added nobody takes it: it is counted."""
    scene = Scene(tmp_path, limit=1000)
    thread = WriterThread(scene.writer, scene.clock.monotonic)
    left = [1]

    class Slow(deque[tuple[int, Record, int]]):
        def append(self, each: tuple[int, Record, int]) -> None:
            while left and left.pop():
                if is_ended:
                    thread.end(0.0)
                else:
                    monkeypatch.setattr(DiskWriter, "turn", broken)
                thread._run()
            super().append(each)

    def broken(writer: DiskWriter) -> float:
        raise MemoryError("by chance")

    scene.spool._records = Slow()
    scene.offer()
    thread.count_left()

    assert scene.dropped() == {"stopped" if is_ended else "write_failed": 1}
    assert scene.spool.waiting_bytes == len(scene.spool) == 0


@given(st.lists(st.text(), max_size=5), st.text())
def test_any_text_is_one_line(tmp_path_factory: pytest.TempPathFactory, texts: list[str], key: str) -> None:
    """Client ids and topics are whatever clients say."""
    scene = Scene(tmp_path_factory.mktemp("landing"))
    for text in texts:
        scene.spool.offer(1, {"client": text, "labels": {key: text}})
    scene.finish()

    lines = b"".join(path.read_bytes() for path in published(scene.landing)).splitlines()
    assert [json.loads(line)["client"] for line in lines] == texts
