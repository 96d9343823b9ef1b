"""Verifying passwords beside the broker's work: a few at a time, in threads, with lines in front that have an end."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Final

from attrs import define, field
from twisted.internet.defer import Deferred

from kinmqtt_auth_file.backing_off import BackOff
from kinmqtt_auth_file.hashes import PasswordHash
from kinmqtt_auth_file.turns import Turns, network
from kinmqtt_spi.pace import Pace

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Context, Timer

SHARE_OF_ONE_ADDRESS: Final = 4
"""The part of all places, one in so many, that connections from one address may fill."""
PATIENCE_S: Final = 8.0
"""How long a client waits for its turn before it is told that the server is busy. The broker waits 10 s."""
LEAST_WAKING_S: Final = 0.001
"""Waking up for a pause that is over by less than this would be waking up for rounding."""
TOLD_AGAIN_AFTER_S: Final = 60.0
"""After a line in the log, until the next of the kind."""


class TooBusy(Exception):
    """So many verifications are waiting that this one would not have its turn in time."""


@define(slots=True, eq=False)
class _Job:
    """One verification that waits or runs."""

    hash: PasswordHash
    password: bytes = field(repr=False)
    line: str
    answer: Deferred[bool] = field(factory=Deferred)
    patience: Timer | None = None
    """Runs out when it has waited too long."""

    def begins(self) -> None:
        """It waits no more."""
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


class Line:
    """Runs so many verifications at once and lets so many wait: the addresses have their turns one after the other.

    An address from which wrong passwords came pauses between two of its verifications, which go one by one, and those
    without failures go first. Jobs of clients that are gone leave without having cost anything.
    """

    def __init__(self, context: Context, at_once: int, waiting: int, longest_pause_s: float) -> None:
        """``longest_pause_s`` is how long an address pauses at most, after many wrong passwords."""
        self._context = context
        self._at_once = at_once
        self._waiting = waiting
        self._running: Counter[str] = Counter()
        self._back_off = BackOff(context.clock, longest_pause_s)
        self._turns: Turns[_Job] = Turns(self._back_off.has_failed)
        self._wakes: Timer | None = None
        self._busy_pace = Pace(context.clock, TOLD_AGAIN_AFTER_S)
        self._failing_pace = Pace(context.clock, TOLD_AGAIN_AFTER_S)
        self._abandoned = context.metrics.counter("abandoned", "clients")
        context.metrics.gauge("waiting", "clients", lambda: len(self))
        context.metrics.gauge("failing", "addresses", lambda: len(self._back_off))

    def __len__(self) -> int:
        """How many wait."""
        return len(self._turns)

    def resize(self, at_once: int, waiting: int, longest_pause_s: float) -> None:
        """New bounds; those who wait already go on waiting."""
        self._at_once, self._waiting = at_once, waiting
        self._back_off.bound(longest_pause_s)
        self._next()

    def verify(self, hash: PasswordHash, password: bytes, address: str) -> Deferred[bool]:
        """Whether it is the password; raises :class:`TooBusy` where there is no place for it.

        Whoever has a place may lose it to an address that has less: then the answer fails with that, too.
        """
        line = network(address)
        if not self._begins_at_once(line):
            self._make_place(line)
        job = _Job(hash, password, line)
        job.answer = Deferred(lambda _: self._abandon(job))
        job.patience = self._context.clock.later(PATIENCE_S, partial(self._turn_away, job))
        self._turns.add(line, job)
        self._next()
        return job.answer

    def succeeded(self, address: str) -> None:
        """A right password came from an address, which was known without being verified."""
        self._heal(network(address))
        self._next()

    def close(self) -> None:
        """Turn away those who wait, and leave no timer."""
        for job in self._turns.everybody():
            self._turn_away(job)
        self._sleep()

    # Who waits

    def _begins_at_once(self, line: str) -> bool:
        """Whether a job needs no place to wait: a thread is free, and its line may have a turn."""
        is_free = self._running.total() < self._at_once
        return is_free and not self._turns.waiting(line) and self._is_ready(line)

    def _make_place(self, line: str) -> None:
        waiting = self._turns.waiting(line)
        pause_s = self._back_off.pause_s(line)
        if waiting >= max(self._waiting // SHARE_OF_ONE_ADDRESS, 1) or waiting * pause_s > PATIENCE_S:
            raise self._too_busy(line)
        if len(self._turns) < self._waiting:
            return
        gives_way = self._turns.last_of_longest(line)
        if gives_way is None:
            raise self._too_busy(line)
        self._turn_away(gives_way[1])

    def _abandon(self, job: _Job) -> None:
        """Nobody waits for the answer any more. What runs is a thread's and goes on to its end."""
        if self._turns.remove(job.line, job):
            job.begins()
            self._abandoned.value += 1

    def _turn_away(self, job: _Job) -> None:
        """It has waited too long, or gives way."""
        if self._turns.remove(job.line, job):
            job.begins()
            job.answer.errback(self._too_busy(job.line))

    def _too_busy(self, line: str) -> TooBusy:
        more = self._busy_pace.due()
        if more is not None:
            self._context.log.warn(
                "logins are refused as busy: {waiting} wait for a thread, {here} of them from {line}, of at most "
                "{most}{more}",
                waiting=len(self._turns),
                here=self._turns.waiting(line),
                line=line or "nowhere",
                most=self._waiting,
                more=f"; {more} were refused since the last such line" if more else "",
            )
        return TooBusy(f"{len(self._turns)} verifications are waiting")

    # Whose turn it is

    def _is_ready(self, line: str) -> bool:
        """Whether an address may have a turn: with failures, one by one, and after its pause."""
        if not self._back_off.has_failed(line):
            return True
        return not self._running[line] and self._back_off.ready_at(line) <= self._context.clock.monotonic()

    def _next(self) -> None:
        while self._running.total() < self._at_once:
            turn = self._turns.take(self._is_ready)
            if turn is None:
                break
            line, job = turn
            job.begins()
            self._running[line] += 1
            Deferred.fromCoroutine(self._run(job))
        self._wake_later()

    def _wake_later(self) -> None:
        """Where threads are free and all who wait are pausing, look again when the first pause is over."""
        self._sleep()
        if self._running.total() < self._at_once:
            pausing = [self._back_off.ready_at(line) for line in self._turns.failing() if not self._running[line]]
            if pausing:
                left_s = min(pausing) - self._context.clock.monotonic()
                self._wakes = self._context.clock.later(max(left_s, LEAST_WAKING_S), self._next)

    def _sleep(self) -> None:
        if self._wakes is not None:
            self._wakes.cancel()
            self._wakes = None

    async def _run(self, job: _Job) -> None:
        """One verification; its place is free when the thread is done, not when somebody stopped waiting."""
        hash, password = job.hash, job.password
        right, error = False, None
        try:
            right = await self._context.in_thread(lambda: hash.verify(password))
        except Exception as failure:
            error = failure
        self._running[job.line] -= 1
        self._running += Counter()  # What is at nothing goes.
        # Also where the client has gone meanwhile: or it would always go, and never have failed.
        if error is None and right:
            self._heal(job.line)
        elif error is None:
            self._fail(job.line)
        if not job.answer.called:
            if error is None:
                job.answer.callback(right)
            else:
                job.answer.errback(error)
        self._next()

    def _heal(self, line: str) -> None:
        self._back_off.succeeded(line)
        self._turns.look_again(line)

    def _fail(self, line: str) -> None:
        count = self._back_off.failed(line)
        self._turns.look_again(line)
        pause_s = self._back_off.pause_s(line)
        more = self._failing_pace.due() if pause_s else None
        if more is not None:
            self._context.log.warn(
                "{count} wrong passwords in a row from {line}: its logins wait for {pause} s after each{more}",
                count=count,
                line=line or "nowhere",
                pause=f"{pause_s:g}",
                more=f"; {more} more such passwords since the last such line, from any address" if more else "",
            )
