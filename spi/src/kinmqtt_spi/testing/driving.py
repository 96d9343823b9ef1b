"""Waits for a service's answers in synchronous tests: values, Deferreds, coroutines and futures."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable
from typing import Any, Final, Protocol, TypeVar, cast, overload

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.values import Maybe

T = TypeVar("T")

LIMIT_S: Final = 30.0
"""How long an answer may take in real time before a test fails."""

_TURNS: Final = 10_000


async def resolved(answer: Maybe[T]) -> T:
    """Return an answer in a coroutine, whether it is available now or later."""
    if isinstance(answer, Awaitable):
        return cast(T, await answer)
    return answer


class NoAnswer(AssertionError):
    """A service returned an awaitable that never completed."""


class Driver(Protocol):
    """Waits for an answer: ``drive(store.load("c"))`` returns the store's answer, now or later."""

    @overload
    def __call__(self, answer: Awaitable[T]) -> T: ...
    @overload
    def __call__(self, answer: Maybe[T]) -> T: ...
    def __call__(self, answer: Maybe[T]) -> T:
        """Return the result of an answer; raises its error, or :class:`NoAnswer` if it never completes."""

    def together(self, answers: Iterable[Maybe[T]]) -> list[T]:
        """Return the results of several concurrent answers, including coroutines, when all are available.

        Raises the first error, after all others have completed.
        """

    def abandon(self, answer: Maybe[Any]) -> None:
        """Stop waiting, as the broker does for a closed connection: the awaited call is cancelled."""


class TurningDriver:
    """Advances a clock until the answer is available: for services that answer at once, or with Deferreds.

    ``turn`` is called between checks. Without one the clock is advanced by zero seconds, so that calls in a later
    turn are made.
    """

    def __init__(self, clock: TurnableClock | None = None, turn: Callable[[], object] | None = None) -> None:
        self._turn = turn or (TurnableClock() if clock is None else clock).advance

    @overload
    def __call__(self, answer: Awaitable[T]) -> T: ...
    @overload
    def __call__(self, answer: Maybe[T]) -> T: ...
    def __call__(self, answer: Maybe[T]) -> T:
        """See :class:`Driver`."""
        [result] = self.together([answer])
        return result

    def together(self, answers: Iterable[Maybe[T]]) -> list[T]:
        """See :meth:`Driver.together`: each coroutine runs until it waits, then the next one, and so on."""
        waited = list(answers)
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}
        pending: dict[int, Coroutine[Any, Any, T]] = {}
        for number, answer in enumerate(waited):
            if isinstance(answer, Awaitable):
                pending[number] = _await(answer)
            else:
                results[number] = answer
        for _ in range(_TURNS):
            for number, coroutine in list(pending.items()):
                try:
                    coroutine.send(None)
                except StopIteration as end:
                    results[number] = end.value
                    del pending[number]
                except Exception as error:
                    errors[number] = error
                    del pending[number]
            if not pending:
                return _results(results, errors)
            self._turn()
        for coroutine in pending.values():
            coroutine.close()
        raise NoAnswer(f"{waited[min(pending)]!r} had no result after {_TURNS} turns of the clock")

    def abandon(self, answer: Maybe[Any]) -> None:
        """See :meth:`Driver.abandon`: as with Twisted, the call that a coroutine awaits is cancelled."""
        if not isinstance(answer, Awaitable):
            return
        coroutine = _await(answer)
        try:
            waited_for = coroutine.send(None)
            for _ in range(_TURNS):
                cancel = getattr(waited_for, "cancel", None)
                if cancel is None:
                    waited_for = coroutine.throw(asyncio.CancelledError())
                else:
                    cancel()
                    waited_for = coroutine.send(None)
        except (StopIteration, Exception, asyncio.CancelledError):
            return
        raise NoAnswer(f"{answer!r} goes on however often it is cancelled")


class AsyncioDriver:
    """Runs its own event loop: for services that use asyncio libraries. Close it at the end of the test."""

    def __init__(self, limit_s: float = LIMIT_S) -> None:
        self.loop = asyncio.new_event_loop()
        self._limit_s = limit_s

    @overload
    def __call__(self, answer: Awaitable[T]) -> T: ...
    @overload
    def __call__(self, answer: Maybe[T]) -> T: ...
    def __call__(self, answer: Maybe[T]) -> T:
        """See :class:`Driver`."""
        [result] = self.together([answer])
        return result

    def together(self, answers: Iterable[Maybe[T]]) -> list[T]:
        """See :meth:`Driver.together`: a task for each."""
        results: dict[int, T] = {}
        errors: dict[int, Exception] = {}
        waited: dict[int, Awaitable[T]] = {}
        for number, answer in enumerate(answers):
            if isinstance(answer, Awaitable):
                waited[number] = answer
            else:
                results[number] = answer
        if waited:
            self.loop.run_until_complete(self._gather(waited, results, errors))
        return _results(results, errors)

    def abandon(self, answer: Maybe[Any]) -> None:
        """See :meth:`Driver.abandon`: the task is cancelled when it has begun."""
        if isinstance(answer, Awaitable):
            self.loop.run_until_complete(self._abandon(answer))

    async def _abandon(self, answer: Awaitable[Any]) -> None:
        as_future = getattr(answer, "asFuture", None)
        future = asyncio.ensure_future(_await(answer)) if as_future is None else as_future(self.loop)
        await asyncio.sleep(0)
        future.cancel()
        await asyncio.wait([future], timeout=self._limit_s)
        if not future.done():
            raise NoAnswer(f"{answer!r} goes on although it is cancelled")

    def close(self) -> None:
        """Cancel what is still running, and close the loop."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            self.loop.run_until_complete(_ended(tasks))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()

    async def _gather(
        self, waited: dict[int, Awaitable[T]], results: dict[int, T], errors: dict[int, Exception]
    ) -> None:
        async def wait(number: int, answer: Awaitable[T]) -> None:
            try:
                results[number] = await self._limited(answer)
            except Exception as error:
                errors[number] = error

        await asyncio.gather(*(wait(number, answer) for number, answer in waited.items()))

    async def _limited(self, answer: Awaitable[T]) -> T:
        shown = repr(answer)
        as_future = getattr(answer, "asFuture", None)
        if as_future is not None:  # A Deferred, which an asyncio task can't await.
            answer = cast("Awaitable[T]", as_future(self.loop))
        try:
            async with asyncio.timeout(self._limit_s) as limit:
                return await answer
        except TimeoutError as error:
            if not limit.expired():
                raise  # The service's own.
            raise NoAnswer(f"{shown} had no result within {self._limit_s:g} s") from error


def _results(results: dict[int, T], errors: dict[int, Exception]) -> list[T]:
    if errors:
        raise errors[min(errors)]
    return [results[number] for number in range(len(results))]


async def _ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    # In a coroutine, because gather takes its loop from who calls it: of no tasks there would be none.
    await asyncio.gather(*tasks, return_exceptions=True)


def _await(awaitable: Awaitable[T]) -> Coroutine[Any, Any, T]:
    async def wait() -> T:
        return await _Patient(awaitable)

    return wait()


class _Patient(Awaitable[T]):
    """An awaitable that may be checked repeatedly before it has its result."""

    def __init__(self, awaitable: Awaitable[T]) -> None:
        self._awaitable = awaitable

    def __await__(self) -> Generator[Any, None, T]:
        done = getattr(self._awaitable, "done", None)
        while done is not None and not done():
            yield
        return (yield from self._awaitable.__await__())
