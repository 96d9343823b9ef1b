"""The thread that takes records from the spool, encodes them and writes them into segments."""

from __future__ import annotations

import errno
import json
import threading
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.record import FORMAT
from kinmqtt_metrics.segments import Disk, InUse, Segment, date_of
from kinmqtt_metrics.spool import DISK_FULL, QUEUE_FULL, STOPPED, UNFIT, WRITE_FAILED, Spool

BREATH_S: Final = 0.0005
"""Between two slices."""
IDLE_S: Final = 0.2
"""How often the thread looks whether something waits."""
RETRY_S: Final = 1.0
"""How soon it tries again what failed."""
STUCK_S: Final = 5.0
"""A turn that takes longer waits for a disk that does not answer: a slice is written in milliseconds."""
LOOK_S: Final = 1.0
"""How often it looks whether the folder is still ours: two calls of stat."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class Batch:
    """Records as lines, ready to be written."""

    __slots__ = ("data", "number", "size_bytes")

    def __init__(self, data: bytes, number: int, size_bytes: int) -> None:
        self.data = data
        self.number = number
        """How many lines."""
        self.size_bytes = size_bytes
        """What they took in memory."""


class Full(Exception):
    """There is less room on the disk than is to stay free."""


class Writer:
    """What the thread does, one step at a time: encode, write, publish. It has no thread of its own."""

    def __init__(
        self,
        spool: Spool,
        disk: Disk,
        landing: Path,
        node: str,
        boot: str,
        now: Callable[[], float],
        monotonic: Callable[[], float],
        keep_lock: Callable[[], None] = lambda: None,
    ) -> None:
        """``now`` and ``monotonic`` in seconds, from any thread; ``keep_lock`` is :meth:`Lock.keep`."""
        self.spool = spool
        self._disk = disk
        self._landing = landing
        self._node = node
        self._boot = boot
        self._now = now
        self._monotonic = monotonic
        self._keep_lock = keep_lock
        self._looked_at = monotonic()
        self.roll_s = 5.0
        self.roll_bytes = 8 << 20
        self.keep_free_bytes = 0
        self._middle = f',"node":{json.dumps(node)},"boot":{json.dumps(boot)},"seq":'
        self._batch: Batch | None = None
        """What was encoded and could not be written yet."""
        self._segment: Segment | None = None
        self._is_sealed = False
        self._figures = spool.figures
        self._in_hand = 0
        """Records that were taken and are not in a batch yet."""
        self._seq = 0
        """Of the last record in a segment."""
        self._published = 0
        """Segments."""
        self.trouble = ""
        """Why nothing is written at the moment; empty where all is well."""
        self._began_at: float | None = None
        """The turn that is under way."""
        self.unlocked = ""
        """Why the folder is not ours alone; empty where it is."""

    # What the thread calls

    def turn(self) -> float:
        """Do one step; answers how long to wait for the next one, in seconds. Raises nothing of the disk's."""
        self._began_at = self._monotonic()
        try:
            return self._turn()
        finally:
            self._began_at = None

    @property
    def is_stuck(self) -> bool:
        """Whether the disk has not answered for long; asked from any thread."""
        began_at = self._began_at
        return began_at is not None and self._monotonic() - began_at > STUCK_S

    def _turn(self) -> float:
        pause_s = self._try_step()
        # Also where nothing can be written: another one of the name would come into the folder all the same.
        if self._monotonic() - self._looked_at >= LOOK_S:
            self._look_at_lock()
        return pause_s

    def _try_step(self) -> float:
        try:
            busy = self.step()
        except Full:
            self._failed(DISK_FULL, self._no_room())
            return RETRY_S
        except OSError as error:
            no_room = error.errno in _NO_ROOM
            self._figures.failures.value += 1
            self._failed(DISK_FULL if no_room else WRITE_FAILED, f"{self._landing}: {error.strerror or error}")
            return RETRY_S
        self.trouble = ""
        self.spool.refusing = QUEUE_FULL
        return BREATH_S if busy else IDLE_S

    def _no_room(self) -> str:
        return f"{self._landing}: less than the {self.keep_free_bytes} bytes are free that keep_free_bytes asks for"

    def _failed(self, reason: str, text: str) -> None:
        self.spool.refusing = reason
        self.trouble = text

    def step(self) -> bool:
        """Publish what is due, then write the next records; whether there are more. Raises OSError and Full."""
        segment = self._segment
        if segment is not None and (self._is_sealed or self._is_due(segment)):
            self.publish()
        if self._batch is None:
            self._batch = self._encoded()
        if self._batch is None:
            return bool(self.spool)
        self._write(self._batch)
        return bool(self.spool)

    def _is_due(self, segment: Segment) -> bool:
        is_old = segment.size_bytes > 0 and self._monotonic() - segment.began >= self.roll_s
        return is_old or segment.size_bytes >= self.roll_bytes

    def publish(self) -> None:
        """Publish what was written so far; raises OSError, and can be called again."""
        segment = self._segment
        if segment is None:
            return
        if segment.size_bytes:
            # From here on nothing is added to it: what was put on the disk is what gets the name.
            self._is_sealed = True
            segment.publish()
            self._published += 1
            self._figures.segments.value += 1
        else:
            segment.discard()
        self._segment = None
        self._is_sealed = False

    def _write(self, batch: Batch) -> None:
        if self.keep_free_bytes and self._free_bytes() - len(batch.data) < self.keep_free_bytes:
            raise Full(self._no_room())
        if self._segment is None:
            name = SegmentName(self._node, self._boot, self._published + 1)
            date = date_of(self._now())
            self._segment = Segment(self._disk, self._landing, name, date, self._monotonic())
        self._segment.append(batch.data)
        self._batch = None
        self._seq += batch.number
        self._figures.written.value += batch.number
        self._figures.bytes.value += len(batch.data)
        self.spool.done(batch.size_bytes)

    def _look_at_lock(self) -> None:
        """Where somebody has removed the lock, it is taken again.

        What is written is not in danger: a segment is its life's own, and locked itself.
        """
        self._looked_at = self._monotonic()
        try:
            try:
                self._keep_lock()
            except FileNotFoundError:
                self._disk.make_folder(self._landing)
                self._keep_lock()
        except InUse as error:
            self.unlocked = (
                f"another broker named {self._node!r} writes to {self._landing}: {error} was removed, and that one "
                "has made it anew; stop one of the two, and give it another name (broker.node_name) or another folder"
            )
        except OSError as error:
            self.unlocked = f"{error.filename or self._landing} was removed and can't be made again: {error.strerror}"
        else:
            self.unlocked = ""

    def _free_bytes(self) -> int:
        try:
            return self._disk.free_bytes(self._landing)
        except FileNotFoundError:
            self._disk.make_folder(self._landing)
            return self._disk.free_bytes(self._landing)

    def _encoded(self) -> Batch | None:
        lines = []
        size_bytes = 0
        seq = self._seq
        taken = self.spool.take()
        self._in_hand = len(taken)
        for t, record, record_bytes in taken:
            size_bytes += record_bytes
            try:
                body = _ENCODE(record)
            except (TypeError, ValueError, RecursionError):
                self._figures.dropped[UNFIT].value += 1
                self._in_hand -= 1
                continue
            seq += 1
            lines.append(f'{{"v":{FORMAT},"t":{t}{self._middle}{seq},{body[1:]}\n')
        if not lines:
            self.spool.done(size_bytes)
            return None
        batch = Batch("".join(lines).encode("ascii"), len(lines), size_bytes)
        self._in_hand = 0
        return batch

    # Its end

    def let_go(self) -> None:
        """Leave what was not published to the next start."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()

    def give_up(self, reason: str = STOPPED) -> None:
        """Count what was not written, as dropped; by whoever offers, once nobody calls :meth:`step` any more."""
        left = self.spool.forget() + self._in_hand + (0 if self._batch is None else self._batch.number)
        self._figures.dropped[reason].value += left
        self.spool.done(self.spool.waiting_bytes)
        self._batch = None
        self._in_hand = 0


def _plain(value: Any) -> str:
    # Base64 takes longer than handing a payload over: it is for the thread.
    return b64encode(value).decode("ascii") if isinstance(value, bytes) else str(value)


# All that is not ASCII is written as \uXXXX: no reader takes a sign within a topic for the end of a line.
_ENCODE: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain, check_circular=False).encode


class WriterThread:
    """Runs a writer until it is told to end."""

    def __init__(self, writer: Writer, monotonic: Callable[[], float]) -> None:
        """``monotonic`` in seconds: how long the end may take is measured by it."""
        self._writer = writer
        self._monotonic = monotonic
        self._ends_at: float | None = None
        self.error = ""
        """What has ended the thread before its time."""
        self._thread = threading.Thread(target=self._run, name="kinmqtt-metrics", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    @property
    def is_alive(self) -> bool:
        """Whether it goes on."""
        return self._thread.is_alive()

    def end(self, limit_s: float) -> None:
        """Have it write and publish what waits, within so many seconds, and come to its end; does not wait for it."""
        self._ends_at = self._monotonic() + limit_s
        self._writer.spool.close()

    def join(self) -> bool:
        """Wait until it has ended, as it was told to; ``False`` where it did not in its time. Blocks."""
        assert self._ends_at is not None
        # A little longer than the thread takes to see that it is over.
        self._thread.join(max(0.0, self._ends_at + RETRY_S - self._monotonic()))
        return not self._thread.is_alive()

    def count_left(self) -> None:
        """Where the thread is gone, count what it has left; by whoever offers, again where more may have come.

        Not by the thread: it would count at once with who offers, and miss a record that is being offered.
        """
        if not self._thread.is_alive():
            self._writer.give_up(WRITE_FAILED if self.error else STOPPED)

    def _run(self) -> None:
        writer, news = self._writer, self._writer.spool.news
        try:
            while self._ends_at is None:
                pause_s = writer.turn()
                # Between two slices too: whoever only yields would get the interpreter back at once.
                news.wait(pause_s)
                news.clear()
            self._finish()
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
            # Nobody takes any more: what comes is dropped, and told as what it is.
            writer.spool.refusing = WRITE_FAILED
            writer.spool.close()
        finally:
            writer.let_go()

    def _finish(self) -> None:
        writer = self._writer
        assert self._ends_at is not None
        while True:
            trouble = ""
            for last_steps in (self._write_all, writer.publish):
                # What was written is published, too, where the rest can't be.
                try:
                    last_steps()
                except (OSError, Full) as error:
                    trouble = trouble or str(error)
            writer.trouble = trouble
            left_s = self._ends_at - self._monotonic()
            if not trouble or left_s <= 0:
                return
            threading.Event().wait(min(left_s, RETRY_S / 4))

    def _write_all(self) -> None:
        assert self._ends_at is not None
        while self._writer.step():
            if self._monotonic() >= self._ends_at:
                return
