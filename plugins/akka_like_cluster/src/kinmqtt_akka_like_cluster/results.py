"""Results that the broker, on Twisted, awaits, and awaitables of the broker that asyncio awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from kinmqtt_spi.values import Maybe


class DeferredResult:
    """A :class:`kinmqtt_spi.mesh.results.Result` whose awaitable is a Deferred: others cost the broker more."""

    __slots__ = ("awaitable",)

    def __init__(self) -> None:
        self.awaitable: Deferred[Any] = Deferred()

    def set(self, value: Any) -> None:
        """Complete it."""
        if not self.awaitable.called:
            self.awaitable.callback(value)

    def fail(self, error: Exception) -> None:
        """Let it raise."""
        if not self.awaitable.called:
            self.awaitable.errback(error)


def run(awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[Exception], None]) -> None:
    """Call one of the two with an awaitable's outcome; see :data:`kinmqtt_spi.mesh.results.Run`."""
    deferred: Deferred[Any] = (
        awaitable if isinstance(awaitable, Deferred) else Deferred.fromFuture(_future(awaitable))
    )
    deferred.addCallbacks(done, lambda failure: failed(_error(failure)))


async def settled(answer: Maybe[Any]) -> Any:
    """Return the value of an answer of the broker, of a store or of a backend, to a coroutine on asyncio."""
    if isinstance(answer, Deferred):
        return await answer.asFuture(asyncio.get_running_loop())
    if isinstance(answer, Awaitable):
        return await answer
    return answer


def _future(awaitable: Awaitable[Any]) -> asyncio.Future[Any]:
    return asyncio.ensure_future(awaitable)


def _error(failure: Failure) -> Exception:
    error = failure.value
    return error if isinstance(error, Exception) else RuntimeError(f"{type(error).__name__}: {error}")
