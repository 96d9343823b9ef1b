"""Converts values, Deferreds, futures and coroutines of Twisted or asyncio into one kind of awaitable.

A Twisted coroutine can await Deferreds only, an asyncio task futures only. Awaiting the wrong kind fails, unless it
has already fired, which hides the mistake. So every awaitable from a plugin is converted here, once, by the kind of
coroutines that the plugin declares.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Coroutine
from typing import Any, TypeVar, cast

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt_spi.errors import CallAbandoned
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.values import Maybe

T = TypeVar("T")

log = Logger("kinmqtt.hooks")


class TimeLimitExceeded(Exception):
    """An awaitable had no result within its time limit."""


def is_pending(answer: object) -> bool:
    """Tell whether an answer is awaitable."""
    return isinstance(answer, Awaitable)


def as_deferred(awaitable: Awaitable[T], *, on_asyncio: bool = False) -> Deferred[T]:
    """Convert a Deferred, an asyncio future or a coroutine (asyncio's if ``on_asyncio``) to a Deferred."""
    if isinstance(awaitable, Deferred):
        return awaitable
    if asyncio.isfuture(awaitable):
        return Deferred.fromFuture(cast("asyncio.Future[T]", awaitable))
    coroutine = cast("Coroutine[Any, Any, T]", awaitable if isinstance(awaitable, Coroutine) else _await(awaitable))
    if on_asyncio:
        return Deferred.fromFuture(asyncio.ensure_future(coroutine))
    return Deferred.fromCoroutine(coroutine)


async def resolve(answer: Maybe[T]) -> T:
    """Return an answer's value, awaiting it if necessary."""
    if isinstance(answer, Awaitable):
        return await as_deferred(answer)
    return answer


def run(coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
    """Start one of the broker's coroutines; it runs up to its first wait before this returns."""
    return Deferred.fromCoroutine(coroutine)


def pause(clock: Clock, delay_s: float) -> Deferred[None]:
    """Return a Deferred that fires after ``delay_s`` seconds."""
    over: Deferred[None] = Deferred()
    clock.later(delay_s, lambda: over.callback(None))
    return over


def has_result(deferred: Deferred[Any]) -> bool:
    """Tell whether a Deferred has its final result. A fired one may still wait for another in its callbacks."""
    return bool(deferred.called and not deferred.paused)


def cancel(deferred: Deferred[Any]) -> None:
    """Cancel a plugin's Deferred, whose canceller may raise."""
    try:
        deferred.cancel()
    except Exception:
        log.failure("cancelling a plugin's call failed")


def limited(deferred: Deferred[T], clock: Clock, limit_s: float | None) -> Deferred[T]:
    """Fail with :class:`TimeLimitExceeded` if the Deferred has no result within ``limit_s`` seconds.

    The Deferred is then cancelled. If its canceller does nothing, its late result is ignored. Cancelling the
    returned Deferred cancels the given one too and fails with :class:`~kinmqtt_spi.errors.CallAbandoned`.
    """
    if limit_s is None or has_result(deferred):
        return deferred
    result: Deferred[T] = Deferred(lambda result: _abandon(deferred, result))
    timer = clock.later(limit_s, lambda: _expire(deferred, result, limit_s))

    def done(value: Any) -> None:
        if not result.called:
            result.callback(value)

    def failed(reason: Any) -> None:
        if not result.called:
            result.errback(reason)

    def over(value: Any) -> Any:
        timer.cancel()
        return value

    result.addBoth(over)
    deferred.addCallbacks(done, failed)
    return result


def _abandon(deferred: Deferred[T], result: Deferred[T]) -> None:
    # Before the cancellation, so that the cancelled Deferred's error does not become the result.
    result.errback(CallAbandoned("the caller no longer waits for the answer"))
    cancel(deferred)


def _expire(deferred: Deferred[T], result: Deferred[T], limit_s: float) -> None:
    if not result.called:
        result.errback(TimeLimitExceeded(f"no answer within {limit_s:g} s"))
    cancel(deferred)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
