"""The log of a data directory while in use: appends groups, and compacts the log.

There are two levels of durability. With ``commit`` a group is persisted when the operating system has it, so that it
survives a crash of the process; a thread syncs it to the disk within about a second. With ``fsync`` a group is
persisted when the disk has it; one request to the disk serves all groups appended before it.

Blocking disk operations run in threads, one after the other, in the order of the calls.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock

from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.records import CommitGroup, pack
from kinmqtt.builtins.embedded.segment import Segment
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Context, Timer
from kinmqtt_spi.values import Commit

T = TypeVar("T")

SEGMENT_BYTES: Final = 64 << 20
"""Size of a segment at which another begins."""

MOST_SEGMENTS: Final = 8
"""Number of segments at which the log is compacted, however small they are."""

SYNC_INTERVAL_S: Final = 1.0
"""Interval between syncs to the disk with durability ``commit``."""

SLICE_INTERVAL_S: Final = 0.002
"""Pause between two slices of a compaction, so that the broker can do other work."""

RETRY_S: Final = 1.0
"""Pause after a failed disk operation."""


WORKS_AGAIN_S: Final = 5.0
"""How long a store must work without failure before the log reports its recovery."""


class Journal:
    """Appends groups to the newest segment."""

    def __init__(
        self,
        folder: Path,
        fsync: bool,
        context: Context,
        slices: Callable[[], Iterator[CommitGroup]],
        first: Sequence[Path],
    ) -> None:
        """``slices`` yields a snapshot; ``first`` are the existing segments. Call :meth:`open` first."""
        self._folder = folder
        self._fsync = fsync
        self._context = context
        self._slices = slices
        self._line = DeferredLock()
        self._sync_line = DeferredLock()
        """A separate lock, so that syncs do not wait for segments to be created or sealed."""
        self._old = {path: path.stat().st_size for path in first}
        """Closed segments in order, with their approximate sizes."""
        self._told_bytes = 0
        self._told_segments = 0
        """Size of the last snapshot: the minimum size of the log while as much is live."""
        self._told_live_bytes = self._live_bytes = 0
        """Live bytes at the last compaction, and at the last check whether one is due."""
        self._failures = 0
        """Number of failed disk operations."""
        self._current: Segment | None = None
        self._next: Segment | None = None
        self._leaving: dict[Segment, Deferred[None]] = {}
        """Segments that are open but no longer written to, each with a Deferred that fires when it is closed."""
        self._preparing: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        """Waiters for the sync of appended groups."""
        self._syncing = False
        self._unsynced = False
        self._compacting: Deferred[None] | None = None
        self._resting = False
        self._unsealed: Exception | None = None
        """The error that prevented sealing a segment, whose contents may not be on the disk."""
        self._suspect = False
        """Whether a disk operation has failed since the last compaction."""
        self._closed = False
        self.problem: str | None = None
        """Why groups can't be persisted at present."""
        self._told = False
        """Whether a problem has been logged, but not its end."""
        self._works_again: Timer | None = None
        """Fires when the end of a problem is logged."""

    # Start and stop

    async def open(self, number: int) -> None:
        """Begin a new segment. Raises ``sqlite3.Error`` or ``OSError``."""
        self._current = await self._in_line(partial(Segment, self._folder, number))
        self._prepare()
        if not self._fsync:
            self._context.clock.later(SYNC_INTERVAL_S, self._sync_now_and_then)

    async def close(self) -> None:
        """Sync everything and convert the segments to plain files."""
        self._closed = True
        if self._works_again is not None:
            self._works_again.cancel()
            self._works_again = None
        if self._compacting is not None:
            await self._compacting
        if self._preparing is not None:
            await self._preparing
        while self._leaving:
            await next(iter(self._leaving.values()))
        current, prepared = self._current, self._next
        self._current = self._next = None
        if prepared is not None:
            await self._in_line(partial(_discard, prepared))
        if current is not None:
            # Remove the empty segment of a start that failed.
            of_use = current.size_bytes or current.marked
            try:
                await self._in_line(current.seal if of_use else partial(_discard, current))
            except (sqlite3.Error, OSError) as error:
                # As after a crash: the groups are in the write-ahead log, which the next start reads.
                self._context.log.warn(
                    "{path} leaves its write-ahead log, which the next start reads: {error}",
                    path=current.path,
                    error=error,
                )

    def abandon(self) -> None:
        """Close the files without sealing, as a killed process would. For tests."""
        self._closed = True
        for each in (self._current, self._next, *self._leaving):
            if each is not None:
                each.abandon()
        self._current = self._next = None

    # Appending

    def append(self, data: bytes) -> Commit:
        """Persist a group. Raises :class:`ServiceUnavailable`, or returns an awaitable that does, if that fails."""
        if self._suspect:
            raise ServiceUnavailable(f"embedded: {self.problem}")
        return self._append(self._newest, data)

    def _append(self, current: Segment, data: bytes) -> Commit:
        try:
            current.append(data)
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if not self._fsync:
            self._works()
        self._unsynced = True
        if current.size_bytes >= SEGMENT_BYTES:
            self._rotate()
        return self._synced() if self._fsync else None

    @property
    def _newest(self) -> Segment:
        if self._current is None:
            raise ServiceUnavailable("the embedded store is closed")
        return self._current

    @property
    def size_bytes(self) -> int:
        """Return the approximate size of the log."""
        return sum(self._old.values()) + (0 if self._current is None else self._current.size_bytes)

    def wants_compaction(self, live_bytes: int) -> bool:
        """Tell whether the log is so much larger than its live contents (about ``live_bytes``) to need compaction."""
        self._live_bytes = live_bytes
        if self._compacting is not None or self._resting or self._closed:
            return False
        if len(self._old) - self._told_segments > MOST_SEGMENTS and live_bytes < 2 * self.size_bytes:
            # A snapshot may write a message in many queues more than once: the log must not grow by compaction.
            return True
        told_bytes = self._told_bytes
        if 0 <= live_bytes < self._told_live_bytes:
            # Many of these have been removed since; estimate the snapshot in proportion.
            told_bytes = told_bytes * live_bytes // self._told_live_bytes
        return self.size_bytes > 2 * max(live_bytes, told_bytes) + SEGMENT_BYTES

    def compact(self) -> Deferred[None]:
        """Write a snapshot slice by slice, and remove the older segments."""
        if self._compacting is None:
            done: Deferred[None] = Deferred()
            self._compacting = done
            self._run(self._compact(), done)
        return self._compacting

    # Internal

    def _failed(self, error: Exception) -> ServiceUnavailable:
        # On a full disk a small group may fit between two large ones that do not: log the recovery later.
        if self._works_again is not None:
            self._works_again.cancel()
            self._works_again = None
        if not self._told:
            self._told = True
            self._context.log.error(
                "the embedded store in {folder} can't write: {error}", folder=self._folder, error=error
            )
        self.problem = f"{self._folder}: {error}"
        full = "full" in str(error)
        reason = ReasonCode.QUOTA_EXCEEDED if full else ReasonCode.SERVER_UNAVAILABLE
        return ServiceUnavailable(
            str(error) if isinstance(error, ServiceUnavailable) else f"embedded: {error}", reason
        )

    def _works(self) -> None:
        self.problem = None
        if self._told and self._works_again is None:
            self._works_again = self._context.clock.later(WORKS_AGAIN_S, self._tell_that_it_works)

    def _tell_that_it_works(self) -> None:
        self._works_again = None
        self._told = False
        self._context.log.info("the embedded store can write again")

    def _rotate(self) -> bool:
        """Continue in the next segment; return ``False`` if it is not ready, so that the current one is used."""
        current, prepared = self._current, self._next
        if current is None:
            return False
        if prepared is None:
            self._prepare()
            return False
        self._current, self._next = prepared, None
        self._old[current.path] = current.size_bytes
        left: Deferred[None] = Deferred()
        self._leaving[current] = left
        self._run(self._seal(current), left)
        self._prepare()
        return True

    async def _seal(self, old: Segment) -> None:
        failure: Exception | None = None
        try:
            await self._in_line(old.sync, self._sync_line)
        except OSError as error:
            failure = error
        try:
            # After a disk failure it stays as it is, with its write-ahead log, which the next start reads. Its
            # files are closed in any case.
            await self._in_line(old.seal if failure is None else old.abandon)
        except (sqlite3.Error, OSError) as error:
            failure = failure or error
        finally:
            del self._leaving[old]
        if failure is not None:
            self._context.log.error("{path} could not be sealed: {error}", path=old.path, error=failure)
            self._unsealed = failure
            self._failures += 1

    def _prepare(self) -> None:
        """Create the next segment before it is needed."""
        if self._preparing is None and self._next is None and not self._closed and self._current is not None:
            done: Deferred[None] = Deferred()
            self._preparing = done
            self._run(self._prepare_next(self._current.number + 1), done)

    async def _prepare_next(self, number: int) -> None:
        try:
            self._next = await self._in_line(partial(Segment, self._folder, number))
        except (sqlite3.Error, OSError) as error:
            log = self._context.log
            log.error("no new segment can be created in {folder}: {error}", folder=self._folder, error=error)
            self._context.clock.later(RETRY_S, self._prepare)
        finally:
            self._preparing = None

    def _synced(self) -> Awaitable[None]:
        kept: Deferred[None] = Deferred()
        self._waiting.append(kept)
        if not self._syncing:
            self._syncing = True
            self._run(self._sync())
        return kept

    async def _sync(self) -> None:
        """Sync until there are no waiters; later waiters wait for the next sync."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                try:
                    await self._ask_disk()
                except (OSError, ServiceUnavailable) as error:
                    failure = self._failed(error)
                    # The state of this segment on disk is unknown after a failed sync, so nothing is persisted until
                    # a compaction has written a snapshot to another. Later groups in this one are not persisted.
                    self._suspect = True
                    waiting += self._waiting
                    self._waiting = []
                    self._resting = False
                    self.compact()
                    for kept in waiting:
                        kept.errback(failure)
                else:
                    if not self._suspect:
                        self._works()
                    for kept in waiting:
                        kept.callback(None)
        finally:
            self._syncing = False

    async def _ask_disk(self) -> None:
        self._unsynced = False
        current = self._newest
        # The previous segment is sealed before this in the same order; segments left later come after it.
        try:
            await self._in_line(current.sync, self._sync_line)
        except BaseException:
            self._unsynced = True
            self._failures += 1
            raise
        if self._unsealed is not None:
            error, self._unsealed = self._unsealed, None
            raise ServiceUnavailable(f"a segment could not be sealed: {error}")

    def _sync_now_and_then(self) -> None:
        if self._closed:
            return
        self._context.clock.later(SYNC_INTERVAL_S, self._sync_now_and_then)
        if self._unsynced and not self._syncing:
            self._syncing = True
            self._run(self._sync_once())

    async def _sync_once(self) -> None:
        try:
            await self._ask_disk()
        except (OSError, ServiceUnavailable) as error:
            self._context.log.error("syncing to the disk failed: {error}", error=error)
        finally:
            self._syncing = False

    async def _compact(self) -> None:
        clock = self._context.clock
        try:
            while not self._rotate():
                if self._closed:
                    return
                if self._preparing is not None:
                    await self._preparing
                if self._next is None:
                    await _pause(clock, RETRY_S)
            first = self._newest.number
            failures = self._failures
            for group in self._slices():
                if group:
                    written = self._append(self._newest, pack(group))
                    if isinstance(written, Deferred):
                        written.addErrback(lambda failure: None)  # The sync at the end covers all of it.
                await _pause(clock, SLICE_INTERVAL_S)
                if self._closed:
                    return
            await self._ask_disk()
            if self._failures != failures:
                raise ServiceUnavailable("the disk failed during the compaction, so its state is unknown")
            self._newest.begin_with(first)
            await self._ask_disk()
            if self._failures != failures:
                raise ServiceUnavailable("the disk failed during the compaction, so its state is unknown")
            self._suspect = False
            gone = [path for path in self._old if segment.number_of(path) < first]
            for path in gone:
                del self._old[path]
            self._told_bytes = self.size_bytes
            self._told_segments = len(self._old)
            self._told_live_bytes = self._live_bytes
            await self._in_line(partial(_remove, gone))
        except (sqlite3.Error, OSError, ServiceUnavailable) as error:
            self._context.log.error("{folder} could not be compacted: {error}", folder=self._folder, error=error)
            self._resting = True
            clock.later(RETRY_S if self._suspect else 60 * RETRY_S, self._rested)
        finally:
            self._compacting = None

    def _rested(self) -> None:
        self._resting = False
        if self._suspect and not self._closed:
            self.compact()

    def _run(self, work: Coroutine[Any, Any, None], done: Deferred[None] | None = None) -> None:
        def failed(failure: Any) -> None:
            self._context.log.error("the embedded store failed: {error}", error=failure.value)

        running = Deferred.fromCoroutine(work).addErrback(failed)
        if done is not None:
            running.addCallback(lambda _: done.callback(None))

    async def _in_line(self, call: Callable[[], T], line: DeferredLock | None = None) -> T:
        """Run a call in a thread, after the calls before it."""
        line = self._line if line is None else line
        await line.acquire()
        try:
            return await self._context.in_thread(call)
        finally:
            line.release()


def _discard(prepared: Segment) -> None:
    prepared.abandon()
    segment.remove(prepared.path)


def _remove(gone: Sequence[Path]) -> None:
    for path in gone:
        segment.remove(path)


def _pause(clock: Any, delay_s: float) -> Deferred[None]:
    over: Deferred[None] = Deferred()
    clock.later(delay_s, lambda: over.callback(None))
    return over
