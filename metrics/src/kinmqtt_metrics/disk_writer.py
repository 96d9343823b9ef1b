"""Writes records into segments of the landing folder."""

from __future__ import annotations

import errno
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.line_writer import BREATH_S, IDLE_S, RETRY_S, Batch, LineWriter, Unwritten
from kinmqtt_metrics.segments import Disk, InUse, Segment, date_of
from kinmqtt_metrics.settings import MetricsSettings
from kinmqtt_metrics.spool import DISK_FULL, WRITE_FAILED, Spool

LOOK_S: Final = 1.0
"""How often it looks whether the folder is still ours: two calls of stat."""

_NO_ROOM: Final = (errno.ENOSPC, errno.EDQUOT)


class Full(Unwritten):
    """There is less room on the disk than is to stay free."""


class DiskWriter(LineWriter):
    """Writes lines into the open segment, and publishes it when it is due."""

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
        super().__init__(spool, node, boot, monotonic)
        self._disk = disk
        self._landing = landing
        self._node = node
        self._boot = boot
        self._now = now
        self._keep_lock = keep_lock
        self._looked_at = monotonic()
        self.roll_s = 5.0
        self.roll_bytes = 8 << 20
        self.keep_free_bytes = 0
        self._segment: Segment | None = None
        self._is_sealed = False
        self._published = 0
        """Segments."""

    @property
    def stuck(self) -> str:
        """The folder."""
        return f"{self._landing}: the disk does not respond"

    def go_by(self, settings: MetricsSettings) -> None:
        """When to publish, and how much room to leave."""
        self.roll_s = settings.roll_s
        self.roll_bytes = settings.roll_bytes
        self.keep_free_bytes = settings.keep_free_bytes

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
        self._well()
        return BREATH_S if busy else IDLE_S

    def _no_room(self) -> str:
        return f"{self._landing}: less than the {self.keep_free_bytes} bytes are free that keep_free_bytes asks for"

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
        self._written(batch.number, len(batch.data), batch.size_bytes)

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

    # Its end

    def let_go(self) -> None:
        """Leave what was not published to the next start."""
        segment, self._segment = self._segment, None
        if segment is not None:
            segment.close()
