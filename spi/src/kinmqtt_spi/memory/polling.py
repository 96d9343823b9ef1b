"""Drives awaitables without an event loop: for runners of sinks and sources on a clock that tests control."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Pending(Awaitable[T], Generic[T]):
    """An awaitable that has no result until :meth:`complete` or :meth:`fail` is called; it can be cancelled.

    Await it where a :class:`PollingRun` or a suite's driver goes on: neither Twisted nor asyncio knows it.
    """

    __slots__ = ("_error", "_is_done", "_result")

    def __init__(self) -> None:
        self._is_done = False
        self._error: BaseException | None = None
        self._result: T | None = None

    def done(self) -> bool:
        """Tell whether it has a result or an error."""
        return self._is_done

    def complete(self, result: Any = None) -> None:
        """Set the result; ignored if there is one."""
        if not self._is_done:
            self._is_done, self._result = True, result

    def fail(self, error: BaseException) -> None:
        """Set the error; ignored if there is a result."""
        if not self._is_done:
            self._is_done, self._error = True, error

    def cancel(self) -> None:
        """Fail with ``asyncio.CancelledError``."""
        self.fail(asyncio.CancelledError())

    def __await__(self) -> Generator[Any, None, T]:
        while not self._is_done:
            yield self
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]


class PollingCall:
    """One awaitable that is driven."""

    def __init__(
        self, awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> None:
        self._coroutine = _await(awaitable)
        self._done = done
        self._failed = failed
        self._waits_for: Any = None
        self.is_over = False

    def step(self) -> None:
        """Go on as far as possible."""
        self._go(lambda: self._coroutine.send(None))

    def cancel(self) -> None:
        """Cancel what is waited for, as Twisted and asyncio do."""
        if self.is_over:
            return
        cancel = getattr(self._waits_for, "cancel", None)
        if cancel is not None:
            cancel()
            self.step()
        else:
            self._go(lambda: self._coroutine.throw(asyncio.CancelledError()))

    def _go(self, resume: Callable[[], Any]) -> None:
        if self.is_over:
            return
        try:
            self._waits_for = resume()
        except StopIteration as end:
            self.is_over = True
            self._done(end.value)
        except (Exception, asyncio.CancelledError) as error:
            self.is_over = True
            self._failed(error)


class PollingRun:
    """A :data:`~kinmqtt_spi.bridging.calls.Run` whose awaitables go on when :meth:`turn` is called.

    It drives coroutines that await :class:`Pending`, Deferreds, or each other.
    """

    def __init__(self) -> None:
        self._calls: list[PollingCall] = []

    def __call__(
        self, awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> PollingCall:
        call = PollingCall(awaitable, done, failed)
        self._calls.append(call)
        call.step()
        return call

    def turn(self) -> None:
        """Let every awaitable go on as far as possible."""
        for call in list(self._calls):
            call.step()
        self._calls = [call for call in self._calls if not call.is_over]

    def close(self) -> None:
        """Cancel what has not ended."""
        for call in self._calls:
            call.cancel()
        self._calls.clear()


async def _await(awaitable: Awaitable[Any]) -> Any:
    return await awaitable
