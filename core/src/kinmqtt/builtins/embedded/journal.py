"""The log of a data directory while it is in use: groups are appended, and what is old is told anew and removed.

Two promises can be had. With ``commit`` a group is kept when the operating system has it, which a dying process does
not take along; a thread has the disk write it within a second or so. With ``fsync`` it is kept when the disk has it:
one request to the disk serves all groups that came before it.

What waits for a disk is done in threads, one thing after the other, in the order in which it was asked for.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock

from kinmqtt.builtins.embedded import segment
from kinmqtt.builtins.embedded.records import Group, pack
from kinmqtt.builtins.embedded.segment import Segment
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Context, Timer
from kinmqtt_spi.values import Commit

T = TypeVar("T")

SEGMENT_BYTES: Final = 64 << 20
"""Groups in one segment before another begins."""

MOST_SEGMENTS: Final = 8
"""Segments that are read at a start before their contents are told anew, however small they are."""

SYNC_INTERVAL_S: Final = 1.0
"""How often the disk is asked to write what only the operating system has."""

SLICE_INTERVAL_S: Final = 0.002
"""The time between two slices while everything is told anew: the broker has other things to do."""

RETRY_S: Final = 1.0
"""How long a disk is left alone that could not do something."""


WORKS_AGAIN_S: Final = 5.0
"""How long a store that failed must not fail again before the log says that it works."""


class Journal:
    """Appends groups to the newest segment."""

    def __init__(
        self,
        folder: Path,
        fsync: bool,
        context: Context,
        slices: Callable[[], Iterator[Group]],
        first: Sequence[Path],
    ) -> None:
        """``slices`` tells everything anew; ``first`` are the segments there are. :meth:`open` comes first."""
        self._folder = folder
        self._fsync = fsync
        self._context = context
        self._slices = slices
        self._line = DeferredLock()
        self._sync_line = DeferredLock()
        """Those who wait for the disk do not wait for segments to be made or sealed."""
        self._old = {path: path.stat().st_size for path in first}
        """Segments that are no longer written to, in order, with about what they hold."""
        self._told_bytes = 0
        self._told_segments = 0
        """What was told anew the last time: so much a log holds at least, while as much counts."""
        self._told_live_bytes = self._live_bytes = 0
        """What counted then, and what counted when it was last asked whether that is to be done."""
        self._failures = 0
        """Requests to the disk that it did not carry out."""
        self._current: Segment | None = None
        self._next: Segment | None = None
        self._leaving: dict[Segment, Deferred[None]] = {}
        """Segments that are written to no more and are open still, each with what fires when it is closed."""
        self._preparing: Deferred[None] | None = None
        self._waiting: list[Deferred[None]] = []
        """Who waits for the disk to have what was appended."""
        self._syncing = False
        self._unsynced = False
        self._compacting: Deferred[None] | None = None
        self._resting = False
        self._unsealed: Exception | None = None
        """Why a segment that was left could not be sealed: what stands in it may not be on the disk."""
        self._suspect = False
        """Whether a request to the disk has failed, and not everything has been told anew since."""
        self._closed = False
        self.problem: str | None = None
        """Why groups can't be kept at present."""
        self._told = False
        """Whether the log has been told of a problem, and not yet that it is over."""
        self._works_again: Timer | None = None
        """Until the log is told that it is over."""

    # Life

    async def open(self, number: int) -> None:
        """Begin a new segment. Raises ``sqlite3.Error`` or ``OSError``."""
        self._current = await self._in_line(partial(Segment, self._folder, number))
        self._prepare()
        if not self._fsync:
            self._context.clock.later(SYNC_INTERVAL_S, self._sync_now_and_then)

    async def close(self) -> None:
        """Leave plain files behind, on disk."""
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
            # A start that nothing came of leaves nothing behind.
            of_use = current.size_bytes or current.marked
            try:
                await self._in_line(current.seal if of_use else partial(_discard, current))
            except (sqlite3.Error, OSError) as error:
                # As after a kill: what was kept stands in the write-ahead log, which the next start reads.
                self._context.log.warn(
                    "{path} keeps its write-ahead log, which the next start reads: {error}",
                    path=current.path,
                    error=error,
                )

    def abandon(self) -> None:
        """Close the files as they are: what a process that is killed would leave behind. For tests."""
        self._closed = True
        for each in (self._current, self._next, *self._leaving):
            if each is not None:
                each.abandon()
        self._current = self._next = None

    # Appending

    def append(self, data: bytes) -> Commit:
        """Keep a group. Raises :class:`ServiceUnavailable`, or answers what does: then it is not kept."""
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
        """About how much the log holds."""
        return sum(self._old.values()) + (0 if self._current is None else self._current.size_bytes)

    def wants_compaction(self, live_bytes: int) -> bool:
        """Whether the log holds so much more than what counts (about ``live_bytes``) that it should be told anew."""
        self._live_bytes = live_bytes
        if self._compacting is not None or self._resting or self._closed:
            return False
        if len(self._old) - self._told_segments > MOST_SEGMENTS and live_bytes < 2 * self.size_bytes:
            # A message in many queues may be told more than once: what is small must not become large.
            return True
        told_bytes = self._told_bytes
        if 0 <= live_bytes < self._told_live_bytes:
            # Much of that is gone since: what is left takes about as much less.
            told_bytes = told_bytes * live_bytes // self._told_live_bytes
        return self.size_bytes > 2 * max(live_bytes, told_bytes) + SEGMENT_BYTES

    def compact(self) -> Deferred[None]:
        """Tell everything anew, slice by slice, and remove what was told before."""
        if self._compacting is None:
            done: Deferred[None] = Deferred()
            self._compacting = done
            self._run(self._compact(), done)
        return self._compacting

    # Within

    def _failed(self, error: Exception) -> ServiceUnavailable:
        # On a disk that is full a small group may find room between two large ones that don't.
        if self._works_again is not None:
            self._works_again.cancel()
            self._works_again = None
        if not self._told:
            self._told = True
            self._context.log.error(
                "the embedded store in {folder} can't keep anything: {error}", folder=self._folder, error=error
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
        self._context.log.info("the embedded store keeps what it is given again")

    def _rotate(self) -> bool:
        """Go on in the next segment; ``False`` where there is none yet, and the current one must do."""
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
            # Where the disk has failed it stays as it is, with its write-ahead log, and is read like that at the next
            # start; its files are closed in any case.
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
        """Have the next segment ready before it is needed."""
        if self._preparing is None and self._next is None and not self._closed and self._current is not None:
            done: Deferred[None] = Deferred()
            self._preparing = done
            self._run(self._prepare_next(self._current.number + 1), done)

    async def _prepare_next(self, number: int) -> None:
        try:
            self._next = await self._in_line(partial(Segment, self._folder, number))
        except (sqlite3.Error, OSError) as error:
            log = self._context.log
            log.error("no new segment can be made in {folder}: {error}", folder=self._folder, error=error)
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
        """Ask the disk until nobody waits; who comes while it is asked waits for the next time."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                try:
                    await self._ask_disk()
                except (OSError, ServiceUnavailable) as error:
                    failure = self._failed(error)
                    # What the disk has lost of this segment can't be known: nothing is kept until everything has
                    # been told anew in another. What stands behind it here is not kept either.
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
        # What stands in the segment before is ahead of this in the line; a segment that was left since is behind it.
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
            self._context.log.error("the disk could not be asked to write: {error}", error=error)
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
                        written.addErrback(lambda failure: None)  # The disk is asked for all of it at the end.
                await _pause(clock, SLICE_INTERVAL_S)
                if self._closed:
                    return
            await self._ask_disk()
            if self._failures != failures:
                raise ServiceUnavailable("the disk has failed meanwhile, and what it has of this can't be known")
            self._newest.begin_with(first)
            await self._ask_disk()
            if self._failures != failures:
                raise ServiceUnavailable("the disk has failed meanwhile, and what it has of this can't be known")
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
        """Make a call in a thread, after those that were asked for before."""
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
