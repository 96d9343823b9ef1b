"""Verifies passwords in a few threads, with a bounded and fair queue."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field
from twisted.internet.defer import Deferred

from kinmqtt_auth_file.backoff import Backoff
from kinmqtt_auth_file.fair_queue import FairQueue, network
from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_spi.pace import Pace

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

ADDRESS_SHARE: Final = 4
"""Connections from one address may fill one in this many places of the queue."""
MAX_WAIT_S: Final = 8.0
"""How long a client waits before it is refused because the server is busy. The broker waits 10 s."""
MIN_WAKE_S: Final = 0.001
"""The shortest timer, so that rounding errors do not cause extra wake-ups."""
LOG_INTERVAL_S: Final = 60.0
"""The shortest interval between log lines of the same kind."""


class TooBusy(Exception):
    """Too many verifications are waiting, so this one would not start in time."""


@define(slots=True, eq=False)
class _Job:
    """A waiting or running verification."""

    hash: PasswordHash
    password: bytes = field(repr=False)
    source: str
    answer: Deferred[bool] = field(factory=Deferred)
    timeout: Timer | None = None
    """Rejects the job when it has waited too long."""

    def stop_waiting(self) -> None:
        """Cancel the timeout, because the job starts or leaves the queue."""
        if self.timeout is not None:
            self.timeout.cancel()
            self.timeout = None


class VerificationPool:
    """Runs a limited number of verifications at once and queues a limited number, fairly by address.

    An address with wrong passwords pauses between its verifications, which run one at a time; addresses without
    failures go first. Jobs of clients that have disconnected are dropped without a verification.
    """

    def __init__(self, context: Context, at_once: int, waiting: int, longest_pause_s: float) -> None:
        """``longest_pause_s`` is the longest pause of an address after many wrong passwords."""
        self._context = context
        self._at_once = at_once
        self._waiting = waiting
        self._running: Counter[str] = Counter()
        self._backoff = Backoff(context.clock, longest_pause_s)
        self._queue: FairQueue[_Job] = FairQueue(self._backoff.has_failed)
        self._wake_timer: Timer | None = None
        self._busy_pace = Pace(context.clock, LOG_INTERVAL_S)
        self._failing_pace = Pace(context.clock, LOG_INTERVAL_S)
        self._abandoned = context.metrics.counter("abandoned", "clients")
        context.metrics.gauge("waiting", "clients", lambda: len(self))
        context.metrics.gauge("failing", "addresses", lambda: len(self._backoff))

    def __len__(self) -> int:
        """The number of waiting jobs."""
        return len(self._queue)

    def resize(self, at_once: int, waiting: int, longest_pause_s: float) -> None:
        """Change the limits; waiting jobs keep waiting."""
        self._at_once, self._waiting = at_once, waiting
        self._backoff.set_limits(longest_pause_s)
        self._next()

    def verify(self, hash: PasswordHash, password: bytes, address: str) -> Deferred[bool]:
        """Whether the password fits the hash; raises :class:`TooBusy` if the queue has no place.

        A job may lose its place to an address with fewer jobs; then the answer fails with :class:`TooBusy` too.
        """
        source = network(address)
        if not self._can_start(source):
            self._make_room(source)
        job = _Job(hash, password, source)
        job.answer = Deferred(lambda _: self._cancel(job))
        job.timeout = self._context.clock.later(MAX_WAIT_S, partial(self._reject, job))
        self._queue.add(source, job)
        self._next()
        return job.answer

    def succeeded(self, address: str) -> None:
        """Record that a cached right password came from an address."""
        self._record_success(network(address))
        self._next()

    def close(self) -> None:
        """Reject all waiting jobs and cancel all timers."""
        for job in self._queue.all_jobs():
            self._reject(job)
        self._cancel_wake()

    # The queue

    def _can_start(self, source: str) -> bool:
        """Whether a job can start without waiting: a thread is free and its address is ready."""
        is_free = self._running.total() < self._at_once
        return is_free and not self._queue.waiting(source) and self._is_ready(source)

    def _make_room(self, source: str) -> None:
        waiting = self._queue.waiting(source)
        pause_s = self._backoff.pause_s(source)
        if waiting >= max(self._waiting // ADDRESS_SHARE, 1) or waiting * pause_s > MAX_WAIT_S:
            raise self._too_busy(source)
        if len(self._queue) < self._waiting:
            return
        evicted = self._queue.eviction_candidate(source)
        if evicted is None:
            raise self._too_busy(source)
        self._reject(evicted[1])

    def _cancel(self, job: _Job) -> None:
        """Drop a job whose answer no one awaits. A running verification continues in its thread."""
        if self._queue.remove(job.source, job):
            job.stop_waiting()
            self._abandoned.value += 1

    def _reject(self, job: _Job) -> None:
        """Reject a job that has waited too long or is evicted."""
        if self._queue.remove(job.source, job):
            job.stop_waiting()
            job.answer.errback(self._too_busy(job.source))

    def _too_busy(self, source: str) -> TooBusy:
        more = self._busy_pace.due()
        if more is not None:
            self._context.log.warn(
                "logins are refused because the server is busy: {waiting} of at most {most} wait for a thread, "
                "{here} of them from {source}{more}",
                waiting=len(self._queue),
                here=self._queue.waiting(source),
                source=source or "nowhere",
                most=self._waiting,
                more=f"; {more} were refused since the last log line" if more else "",
            )
        return TooBusy(f"{len(self._queue)} verifications are waiting")

    # Scheduling

    def _is_ready(self, source: str) -> bool:
        """Whether an address may start a job: with failures one at a time, and after its pause."""
        if not self._backoff.has_failed(source):
            return True
        return not self._running[source] and self._backoff.ready_at(source) <= self._context.clock.monotonic()

    def _next(self) -> None:
        while self._running.total() < self._at_once:
            turn = self._queue.take(self._is_ready)
            if turn is None:
                break
            source, job = turn
            job.stop_waiting()
            self._running[source] += 1
            Deferred.fromCoroutine(self._run(job))
        self._wake_later()

    def _wake_later(self) -> None:
        """If threads are free and all waiting addresses pause, try again when the first pause is over."""
        self._cancel_wake()
        if self._running.total() < self._at_once:
            pausing = [
                self._backoff.ready_at(source) for source in self._queue.failing() if not self._running[source]
            ]
            if pausing:
                left_s = min(pausing) - self._context.clock.monotonic()
                self._wake_timer = self._context.clock.later(max(left_s, MIN_WAKE_S), self._next)

    def _cancel_wake(self) -> None:
        if self._wake_timer is not None:
            self._wake_timer.cancel()
            self._wake_timer = None

    async def _run(self, job: _Job) -> None:
        """Run a verification. The thread counts as busy until it is done, even if the client has gone."""
        hash, password = job.hash, job.password
        right, error = False, None
        try:
            right = await self._context.in_thread(lambda: hash.verify(password))
        except Exception as failure:
            error = failure
        self._running[job.source] -= 1
        self._running += Counter()  # Removes zero counts.
        # Also if the client has gone meanwhile; else it could avoid failures by disconnecting.
        if error is None and right:
            self._record_success(job.source)
        elif error is None:
            self._record_failure(job.source)
        if not job.answer.called:
            if error is None:
                job.answer.callback(right)
            else:
                job.answer.errback(error)
        self._next()

    def _record_success(self, source: str) -> None:
        self._backoff.succeeded(source)
        self._queue.reclassify(source)

    def _record_failure(self, source: str) -> None:
        count = self._backoff.failed(source)
        self._queue.reclassify(source)
        pause_s = self._backoff.pause_s(source)
        more = self._failing_pace.due() if pause_s else None
        if more is not None:
            self._context.log.warn(
                "{count} wrong passwords in a row from {source}: logins from there are delayed by {pause} s after "
                "each{more}",
                count=count,
                source=source or "nowhere",
                pause=f"{pause_s:g}",
                more=f"; {more} more wrong passwords from all addresses since the last log line" if more else "",
            )
