"""Waiting for services: values, Deferreds and coroutines of either sort, made one thing.

A Twisted coroutine may await Deferreds only, an asyncio task futures only, and each fails on the other's, but not
always: one that has already fired hides the mistake. So every awaitable that comes from a plugin passes through
here, once, with the knowledge of which sort the plugin's coroutines are.
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
    """An awaitable answer did not come in time."""


def is_pending(answer: object) -> bool:
    """Whether an answer is something to wait for."""
    return isinstance(answer, Awaitable)


def as_deferred(awaitable: Awaitable[T], *, on_asyncio: bool = False) -> Deferred[T]:
    """A Deferred of whatever it is: a Deferred, an asyncio future, a coroutine (of asyncio's if ``on_asyncio``)."""
    if isinstance(awaitable, Deferred):
        return awaitable
    if asyncio.isfuture(awaitable):
        return Deferred.fromFuture(cast("asyncio.Future[T]", awaitable))
    coroutine = cast("Coroutine[Any, Any, T]", awaitable if isinstance(awaitable, Coroutine) else _await(awaitable))
    if on_asyncio:
        return Deferred.fromFuture(asyncio.ensure_future(coroutine))
    return Deferred.fromCoroutine(coroutine)


async def resolve(answer: Maybe[T]) -> T:
    """The value of an answer that may have to be waited for."""
    if isinstance(answer, Awaitable):
        return await as_deferred(answer)
    return answer


def run(coroutine: Coroutine[Any, Any, T]) -> Deferred[T]:
    """Begin a coroutine of the broker's own; it runs until the first wait before this returns."""
    return Deferred.fromCoroutine(coroutine)


def pause(clock: Clock, delay_s: float) -> Deferred[None]:
    """Fires after that many seconds."""
    over: Deferred[None] = Deferred()
    clock.later(delay_s, lambda: over.callback(None))
    return over


def has_result(deferred: Deferred[Any]) -> bool:
    """Whether a Deferred has its final result; one that has fired may still wait for another within its callbacks."""
    return bool(deferred.called and not deferred.paused)


def cancel(deferred: Deferred[Any]) -> None:
    """Cancel a Deferred of a plugin's making, whose canceller may raise."""
    try:
        deferred.cancel()
    except Exception:
        log.failure("what a plugin waited for could not be cancelled")


def limited(deferred: Deferred[T], clock: Clock, limit_s: float | None) -> Deferred[T]:
    """Fail with :class:`TimeLimitExceeded` where the Deferred has no result within ``limit_s`` seconds.

    The Deferred is cancelled; where its canceller does nothing it is abandoned, and its late result is ignored.
    Whoever cancels what is answered here cancels the Deferred too, and gets
    :class:`~kinmqtt_spi.errors.CallAbandoned`.
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
    # First of all: what the cancelled Deferred fails with is nobody's answer.
    result.errback(CallAbandoned("nobody waits for the answer any more"))
    cancel(deferred)


def _expire(deferred: Deferred[T], result: Deferred[T], limit_s: float) -> None:
    if not result.called:
        result.errback(TimeLimitExceeded(f"no answer within {limit_s:g} s"))
    cancel(deferred)


async def _await(awaitable: Awaitable[T]) -> T:
    return await awaitable
