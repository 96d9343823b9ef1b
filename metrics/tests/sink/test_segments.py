"""Segments: all of what is appended or nothing, published whole, and recovered after any end."""

from __future__ import annotations

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.landing import NODE_BYTES, OPEN, SegmentName, open_path, published, quoted
from kinmqtt_metrics.segments import ANEW, Disk, InUse, Lock, Segment, date_of, recover
from metrics_harness.broken_disk import BrokenDisk, left_open, records

NAME = SegmentName("n-1", "00000000c0ffee01", 1)
DATE = "2026-11-21"
T = 1_795_262_400_000_000
"""Midnight of that date."""


def line(seq: int, name: SegmentName = NAME, t: int = T) -> bytes:
    """A record as it is written."""
    return json.dumps({"v": 1, "t": t, "node": name.node, "boot": name.boot, "seq": seq}).encode() + b"\n"


def never(path: Path, error: OSError) -> None:
    """Nothing is to fail."""
    raise AssertionError(f"{path}: {error}")


@pytest.fixture
def disk() -> BrokenDisk:
    """A disk that works for now."""
    return BrokenDisk()


@pytest.fixture
def segment(disk: BrokenDisk, tmp_path: Path) -> Segment:
    """One with a line in it."""
    segment = Segment(disk, tmp_path, NAME, DATE, 0.0)
    segment.append(line(1))
    return segment


def test_what_is_written_is_seen_when_it_is_published(segment: Segment, tmp_path: Path) -> None:
    """No reader sees a segment before it is whole, and then under its date and name."""
    before = published(tmp_path)
    segment.publish()

    assert before == []
    assert published(tmp_path) == [tmp_path / f"date={DATE}" / str(NAME)]
    assert left_open(tmp_path) == []
    assert [record["seq"] for record in records(tmp_path)] == [1]


def test_it_is_on_the_disk_before_it_has_its_name(disk: BrokenDisk, segment: Segment) -> None:
    """File, name, and then the folders that have the name."""
    segment.publish()

    assert disk.calls == ["open", "write", "sync", "make_folder", "rename", "sync_folder", "sync_folder"]


@pytest.mark.parametrize("room_bytes", [0, 1, 70, 80, 100])
def test_a_write_that_fails_leaves_whole_lines(
    disk: BrokenDisk, segment: Segment, tmp_path: Path, room_bytes: int
) -> None:
    """However much of it the disk took; and the same lines can be written again when there is room."""
    more = line(2) + line(3)
    disk.room_bytes = room_bytes
    with pytest.raises(OSError, match="No space"):
        segment.append(more)
    [open_one] = left_open(tmp_path)
    after_failure = open_one.read_bytes()
    disk.room_bytes = None
    segment.append(more)
    segment.publish()

    assert after_failure == line(1)
    assert [record["seq"] for record in records(tmp_path)] == [1, 2, 3]


def test_a_tail_that_can_not_be_cut_is_cut_later(disk: BrokenDisk, segment: Segment, tmp_path: Path) -> None:
    """Nothing is written behind a torn line, and no such segment is published."""
    disk.fails = lambda call: errno.EIO if call in ("write", "truncate") else None
    for _ in range(2):
        with pytest.raises(OSError):
            segment.append(line(2))
    with pytest.raises(OSError):
        segment.publish()
    disk.fails = lambda call: None
    segment.append(line(2))
    segment.publish()

    assert [record["seq"] for record in records(tmp_path)] == [1, 2]


def test_what_the_disk_lost_is_written_again(disk: BrokenDisk, segment: Segment, tmp_path: Path) -> None:
    """After a failed fsync a second one says that all is well, and means other pages."""
    disk.fails = lambda call: errno.EIO if call == "sync" else None
    with pytest.raises(OSError):
        segment.publish()
    [open_one] = left_open(tmp_path)
    open_one.write_bytes(b"\0" * len(line(1)))
    disk.fails = lambda call: None
    segment.publish()

    assert [record["seq"] for record in records(tmp_path)] == [1]


def test_what_somebody_else_writes_is_not_cut(tmp_path: Path) -> None:
    """Whoever opens it again is refused, and finds it empty once it may be written."""
    path = left_behind(tmp_path, line(1))
    with path.open("rb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError):
            Disk().open(path)
        meanwhile = path.read_bytes()
    disk = Disk()
    disk.close(disk.open(path))

    assert meanwhile == line(1)
    assert path.read_bytes() == b""


def test_a_folder_that_somebody_removed_is_made_again(segment: Segment, tmp_path: Path) -> None:
    """Whoever tidies up the landing folder loses nothing that was not published."""
    [open_one] = left_open(tmp_path)
    open_one.unlink()
    segment.publish()

    assert [record["seq"] for record in records(tmp_path)] == [1]


def test_a_folder_that_goes_with_what_was_published_is_no_error(
    disk: BrokenDisk, segment: Segment, tmp_path: Path
) -> None:
    """It must not be waited for for ever."""
    disk.fails = lambda call: errno.ENOENT if call == "sync_folder" else None

    segment.publish()

    assert left_open(tmp_path) == []


@given(st.sampled_from(["sync", "make_folder", "rename", "sync_folder", "open", "write"]), st.integers(1, 4))
def test_publishing_can_be_repeated(tmp_path_factory: pytest.TempPathFactory, failing: str, times: int) -> None:
    """Wherever it failed, and however often: the segment is there once, whole."""
    landing = tmp_path_factory.mktemp("landing")
    disk = BrokenDisk()
    segment = Segment(disk, landing, NAME, DATE, 0.0)
    segment.append(line(1) + line(2))
    left = [times]

    def fails(call: str) -> int | None:
        if call != failing or not left[0]:
            return None
        left[0] -= 1
        return errno.EIO

    disk.fails = fails
    for _ in range(times + 1):
        try:
            segment.publish()
            break
        except OSError:
            pass

    assert [record["seq"] for record in records(landing)] == [1, 2]
    assert left_open(landing) == []


def test_nonsense_of_the_clock_is_a_date(tmp_path: Path) -> None:
    """The date is a folder's name; whatever the clock says there is one."""
    assert date_of(T / 1e6) == DATE
    assert date_of(1e30) == date_of(float("nan")) == "1970-01-01"


# What earlier lives have left


def left_behind(landing: Path, content: bytes, name: SegmentName = NAME) -> Path:
    """A segment that was being written when its writer died."""
    path = open_path(landing, name)
    path.write_bytes(content)
    return path


@given(st.integers(0, 3), st.data())
def test_any_tail_is_cut(tmp_path_factory: pytest.TempPathFactory, whole: int, data: st.DataObject) -> None:
    """At whatever byte a line ends: the whole ones before it are published, and nothing else."""
    landing = tmp_path_factory.mktemp("landing")
    lines = b"".join(line(seq) for seq in range(7, 7 + whole))
    torn = line(7 + whole)
    tail = data.draw(st.one_of(st.integers(0, len(torn) - 1).map(lambda n: torn[:n]), st.binary(max_size=40)))
    left_behind(landing, lines + tail)

    [one] = recover(Disk(), landing, NAME.node, lambda: 0.0, never)

    assert [record["seq"] for record in records(landing)] == list(range(7, 7 + whole))
    assert (one.records, one.cut_bytes) == (whole, len(tail))
    assert left_open(landing) == []


@pytest.mark.parametrize(
    "bad",
    [
        line(2, SegmentName("n-1", "00000000c0ffee02", 1)),
        line(2, SegmentName("n-2", NAME.boot, 1)),
        line(3),
        line(1),
        line(2).replace(b'"v": 1', b'"v": 2'),
        b"[]\n",
        b"\0" * 50 + b"\n",
        b"[" * 100_000 + b"\n",
    ],
)
def test_what_is_not_of_that_life_is_cut(tmp_path: Path, bad: bytes) -> None:
    """Another boot, another node, a gap, a repetition, another form, or what a power failure leaves."""
    left_behind(tmp_path, line(1) + bad + line(3))

    recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert [record["seq"] for record in records(tmp_path)] == [1]


def test_segments_of_others_are_left_alone(tmp_path: Path) -> None:
    """In a shared folder another broker is writing its own; and names that are prefixes are others."""
    others = [
        left_behind(tmp_path, line(1), SegmentName(node, NAME.boot, 1))
        for node in ("n-2", "n", "n-1-00000000c0ffee01")
    ]
    (tmp_path / ".open-what").write_text("x")

    assert recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never) == []
    assert [path.read_bytes() for path in others] == [line(1)] * 3


def test_the_date_is_that_of_the_first_record(tmp_path: Path) -> None:
    """A segment that is recovered days later has the date on which it was begun."""
    left_behind(tmp_path, line(1) + line(2, t=T + 90_000_000_000))

    [one] = recover(Disk(), tmp_path, NAME.node, lambda: 2e9, never)

    assert one.published == tmp_path / f"date={DATE}" / str(NAME)


def test_a_time_that_is_none_does_not_stop_the_start(tmp_path: Path) -> None:
    """Whatever number stands there: the segment has the date of the next record, or of its recovery."""
    left_behind(tmp_path, line(1, t=10**400) + line(2))

    [one] = recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert one.published == tmp_path / f"date={DATE}" / str(NAME)


def test_what_was_published_before_is_not_published_twice(tmp_path: Path) -> None:
    """A power failure may leave both names of one file."""
    folder = tmp_path / "date=2026-11-20"
    folder.mkdir()
    (folder / str(NAME)).write_bytes(line(1))
    left_behind(tmp_path, line(1))

    recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert [record["seq"] for record in records(tmp_path)] == [1]
    assert left_open(tmp_path) == []


def test_a_name_with_signs_of_patterns_is_found(tmp_path: Path) -> None:
    """The broker's name may have any sign in it."""
    name = SegmentName("a*[b]?/ä~", NAME.boot, 3)
    left_behind(tmp_path, line(1, name), name)

    recover(Disk(), tmp_path, name.node, lambda: 0.0, never)

    assert [record["node"] for record in records(tmp_path)] == ["a*[b]?/ä~"]


def test_what_can_not_be_published_stays_for_the_next_start(disk: BrokenDisk, tmp_path: Path) -> None:
    """It is told, the others are published, and nothing is lost."""
    second = SegmentName(NAME.node, NAME.boot, 2)
    left_behind(tmp_path, line(1))
    left_behind(tmp_path, line(2), second)
    failures: list[Path] = []
    errors = iter([errno.EIO, None])
    disk.fails = lambda call: next(errors, None) if call == "rename" else None

    recover(disk, tmp_path, NAME.node, lambda: 0.0, lambda path, error: failures.append(path))
    disk.fails = lambda call: None
    recover(disk, tmp_path, NAME.node, lambda: 0.0, never)

    assert failures == [open_path(tmp_path, NAME)]
    assert [record["seq"] for record in records(tmp_path)] == [1, 2]


# The lock


def test_two_of_one_name_do_not_write_to_one_folder(tmp_path: Path) -> None:
    """The second is told, until the first has let go; brokers of other names are not in its way."""
    lock = Lock(tmp_path, "a/b")
    Lock(tmp_path, "c").release()
    with pytest.raises(InUse):
        Lock(tmp_path, "a/b")
    lock.release()

    Lock(tmp_path, "a/b").release()
    assert os.sep not in lock.path.name


@pytest.mark.parametrize(
    ("node", "name"),
    [("broker-1", ".lock-broker-1"), ("a/b", ".lock-a%2Fb"), ("ä b", ".lock-%C3%A4%20b"), ("~.", ".lock-%7E.")],
)
def test_the_lock_has_the_name_that_segments_have(tmp_path: Path, node: str, name: str) -> None:
    """That of ordinary names stays what it was: a broker and its next version keep each other out."""
    lock = Lock(tmp_path, node)
    lock.release()

    assert lock.path.name == name == f".lock-{quoted(node)}"


def test_a_name_that_begins_with_a_dot_is_read(tmp_path: Path) -> None:
    """Readers pass over files whose names begin with one."""
    name = SegmentName(".n", NAME.boot, 1)

    assert str(name) == f"%2En-{NAME.boot}-00000001.jsonl"
    assert SegmentName.parse(str(name)) == name


def test_what_is_written_anew_stays_until_all_of_it_is_there(
    disk: BrokenDisk, segment: Segment, tmp_path: Path
) -> None:
    """The disk would not sync, has no room for a second copy, and the broker dies: the first copy is published."""
    disk.fails = lambda call: errno.EIO if call == "sync" else None
    with pytest.raises(OSError, match="Input/output"):
        segment.publish()
    disk.fails, disk.room_bytes = lambda call: None, 5
    with pytest.raises(OSError, match="No space"):
        segment.publish()
    open_path(tmp_path, NAME).with_name(f".open-{NAME}.anew").write_text("half")
    segment.close()
    recover(BrokenDisk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert [record["seq"] for record in records(tmp_path)] == [1]
    assert list(tmp_path.glob(".open*")) == []


@pytest.mark.parametrize("tail", [b"", line(3)[:-5]])
def test_what_was_written_anew_is_published_where_there_is_nothing_else(
    segment: Segment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tail: bytes
) -> None:
    """Somebody removed the open file, and the broker dies before the new one has its name: no record is gone."""

    class Killed(BaseException):
        """The process is no more."""

    def kill(source: Path, target: Path) -> None:
        source.write_bytes(source.read_bytes() + tail)
        raise Killed

    segment.append(line(2))
    open_path(tmp_path, NAME).unlink()
    segment._is_lost = True
    monkeypatch.setattr(segment._disk, "rename", kill)
    with pytest.raises(Killed):
        segment.publish()
    alone = left_open(tmp_path)
    segment.close()
    [one] = recover(BrokenDisk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert [path.name for path in alone] == [f"{OPEN}{NAME}{ANEW}"]
    assert (one.records, one.cut_bytes) == (2, len(tail))
    assert [record["seq"] for record in records(tmp_path)] == [1, 2]
    assert left_open(tmp_path) == []


@pytest.mark.parametrize("is_synced", [True, False])
def test_what_is_being_written_is_not_recovered(
    disk: BrokenDisk, segment: Segment, tmp_path: Path, is_synced: bool
) -> None:
    """Nor is anything else touched: what the writer still writes would be in no segment that anybody reads."""
    earlier = SegmentName(NAME.node, "00000000c0ffee00", 1)
    other = left_behind(tmp_path, line(1, earlier), earlier)
    if not is_synced:
        disk.fails = lambda call: errno.EIO if call == "sync" else None
        with pytest.raises(OSError):
            segment.publish()
        disk.fails = lambda call: None
    with pytest.raises(InUse, match=str(NAME)):
        recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never)
    untouched = other.exists()
    segment.append(line(2))
    segment.publish()
    recover(Disk(), tmp_path, NAME.node, lambda: 0.0, never)

    assert untouched
    assert [record["seq"] for record in records(tmp_path)] == [1, 1, 2]


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: os.symlink(path, path)])
def test_what_is_no_file_holds_nothing_up(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """A FIFO, a folder or a link in place of a segment is told of and left there; the others are published."""
    make(open_path(tmp_path, NAME))
    left_behind(tmp_path, line(2), SegmentName(NAME.node, NAME.boot, 2))
    failures: list[Path] = []

    recover(Disk(), tmp_path, NAME.node, lambda: 0.0, lambda path, error: failures.append(path))

    assert failures == [open_path(tmp_path, NAME)]
    assert [record["seq"] for record in records(tmp_path)] == [2]


def test_a_lock_that_was_removed_is_taken_again(tmp_path: Path) -> None:
    """Its file or the whole folder: the name that others look at is held, and nobody else gets in."""
    landing = tmp_path / "landing"
    landing.mkdir()
    lock = Lock(landing, "n")
    lock.keep()
    lock.path.unlink()
    lock.keep()
    with pytest.raises(InUse):
        Lock(landing, "n")
    lock.path.unlink()
    landing.rmdir()
    with pytest.raises(FileNotFoundError):
        lock.keep()
    landing.mkdir()
    lock.keep()
    with pytest.raises(InUse):
        Lock(landing, "n")
    lock.release()
    lock.keep()

    Lock(landing, "n").release()


def test_a_lock_that_another_has_made_anew_is_that_ones(tmp_path: Path) -> None:
    """As long as the other holds it; then it is taken again."""
    lock = Lock(tmp_path, "n")
    lock.path.unlink()
    other = Lock(tmp_path, "n")
    for _ in range(2):
        with pytest.raises(InUse):
            lock.keep()
    other.release()
    lock.keep()

    with pytest.raises(InUse):
        Lock(tmp_path, "n")


def test_a_lock_that_is_removed_while_it_is_taken_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Held but without a name it would keep nobody out."""
    flock, removed = fcntl.flock, iter([True])

    def remove_first(fd: int, how: int) -> None:
        if next(removed, False):
            next(tmp_path.glob(".lock-*")).unlink()
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    Lock(tmp_path, "n")

    with pytest.raises(InUse):
        Lock(tmp_path, "n")


@given(st.text(st.characters(codec="utf-8"), min_size=1, max_size=120))
def test_a_name_that_is_accepted_fits_into_a_folder(tmp_path_factory: pytest.TempPathFactory, node: str) -> None:
    """With everything that stands around it while it is written, of a trillion segments' last."""
    node = next(node[:size] for size in range(len(node), 0, -1) if len(quoted(node[:size])) <= NODE_BYTES)
    name = SegmentName(node, NAME.boot, 10**12)

    assert SegmentName.parse(str(name)) == name
    assert len(os.fsencode(f"{OPEN}{name}{ANEW}")) <= 255
