"""One call of a sink or source, which may answer later and has a time limit."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Any, Final, Protocol, TypeAlias

from kinmqtt_spi.services.plugin import Clock, Timer

FAILURES: Final = (Exception, CancelledError)
"""What a plugin's code may raise. asyncio's cancellation is not an ``Exception``; it ends only the call."""


class Running(Protocol):
    """What drives an awaitable: a Deferred or an asyncio task."""

    def cancel(self) -> object:
        """Cancel the awaitable."""


Run: TypeAlias = Callable[[Awaitable[Any], Callable[[Any], None], Callable[[BaseException], None]], Running]
"""Drives an awaitable, and calls ``done`` with its result or ``failed`` with its error, once."""


class Overdue(Exception):
    """A call had no answer within its time limit."""


class Call:
    """Calls ``done`` or ``failed`` once, and neither of them after :meth:`abandon`.

    An awaitable that exceeds the time limit is cancelled and fails with :class:`Overdue`; its late result is ignored.
    """

    __slots__ = ("_done", "_failed", "_is_over", "_running", "_timer")

    def __init__(self, done: Callable[[Any], None], failed: Callable[[BaseException], None]) -> None:
        self._done = done
        self._failed = failed
        self._is_over = False
        self._running: Running | None = None
        self._timer: Timer | None = None

    def start(self, make: Callable[[], Any], clock: Clock, run: Run, limit_s: float | None) -> None:
        """Make the call; ``done`` and ``failed`` may be called before this returns. ``limit_s`` is in seconds."""
        try:
            answer = make()
        except FAILURES as error:
            self._fail(error)
            return
        if not isawaitable(answer):
            self._succeed(answer)
            return
        try:
            running = run(answer, self._succeed, self._fail)
        except FAILURES as error:  # not an awaitable that can be driven here
            self._fail(error)
            return
        if not self._is_over:
            self._running = running
            if limit_s is not None:
                self._timer = clock.later(limit_s, lambda: self._expire(limit_s))

    def cancel(self) -> None:
        """Cancel the call; ``done`` or ``failed`` is called when it has ended."""
        if self._running is not None:
            try:
                self._running.cancel()
            except FAILURES:  # a plugin's canceller may raise anything; the call then ends when it ends
                return

    def abandon(self) -> None:
        """Cancel the call and ignore its result."""
        self._end()
        self.cancel()

    def _expire(self, limit_s: float) -> None:
        failed = self._failed
        self.abandon()
        failed(Overdue(f"no answer within {limit_s:g} s"))

    def _succeed(self, value: Any) -> None:
        if not self._is_over:
            self._end()
            self._done(value)

    def _fail(self, error: BaseException) -> None:
        if not self._is_over:
            self._end()
            self._failed(error)

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
