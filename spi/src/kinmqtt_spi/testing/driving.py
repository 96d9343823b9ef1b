"""Waiting for what a service answers, in tests that are no coroutines: values, Deferreds, coroutines and futures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator
from time import monotonic
from typing import Any, Final, Protocol, TypeVar, cast

from kinmqtt_spi.reference.plugin import TurnableClock
from kinmqtt_spi.values import Maybe

T = TypeVar("T")

LIMIT_S: Final = 30.0
"""How long an answer may take in real time before a test fails."""

_TURNS: Final = 10_000


class NoAnswer(AssertionError):
    """A service answered something to wait for, and it never came."""


class Driver(Protocol):
    """Waits for an answer: ``drive(store.load("c"))`` is what the store answers, sooner or later."""

    def __call__(self, answer: Maybe[T]) -> T:
        """The value of an answer; raises what it fails with, and :class:`NoAnswer` where it never comes."""


class TurningDriver:
    """Turns a clock until the answer is there: for services that answer at once, or with Twisted's Deferreds.

    ``turn`` is called between looks; without one the clock is advanced by nothing, so that what was put off to a
    later turn happens.
    """

    def __init__(self, clock: TurnableClock | None = None, turn: Callable[[], object] | None = None) -> None:
        self._turn = turn or (TurnableClock() if clock is None else clock).advance

    def __call__(self, answer: Maybe[T]) -> T:
        """See :class:`Driver`."""
        if not isinstance(answer, Awaitable):
            return answer
        coroutine = _await(answer)
        for _ in range(_TURNS):
            try:
                coroutine.send(None)
            except StopIteration as end:
                result: T = end.value
                return result
            self._turn()
        coroutine.close()
        raise NoAnswer(f"{answer!r} had no result after {_TURNS} turns of the clock")


class AsyncioDriver:
    """Runs an event loop of its own: for services that use asyncio's libraries. Close it when the test is over."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.loop = asyncio.new_event_loop()
        self._limit_s = limit_s

    def __call__(self, answer: Maybe[T]) -> T:
        """See :class:`Driver`."""
        if not isinstance(answer, Awaitable):
            return answer
        try:
            result: T = self.loop.run_until_complete(self._limited(answer))
        except TimeoutError as error:
            if monotonic() < self._until:
                raise  # The service's own.
            raise NoAnswer(f"{answer!r} had no result within {self._limit_s:g} s") from error
        return result

    def close(self) -> None:
        """Cancel what is still running, and close the loop."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:  # Of nothing, gather makes a future of a loop of its own.
            with contextlib.suppress(asyncio.CancelledError):
                self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _limited(self, answer: Awaitable[T]) -> T:
        self._until = monotonic() + self._limit_s
        as_future = getattr(answer, "asFuture", None)
        if as_future is not None:  # A Deferred, which an asyncio task can't await.
            answer = cast("Awaitable[T]", as_future(self.loop))
        async with asyncio.timeout(self._limit_s):
            return await answer


def _await(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    async def wait() -> T:
        return await _Patient(awaitable)

    return wait()


class _Patient(Awaitable[T]):
    """An awaitable that may be looked at again and again before it has its result."""

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, None, T]:
        done = getattr(self._awaitable, "done", None)
        while done is not None and not done():
            yield
        return (yield from self._awaitable.__await__())
