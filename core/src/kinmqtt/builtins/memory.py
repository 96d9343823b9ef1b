"""Sessions, queues, retained messages and events in memory: fast, bounded, and lost when the process ends."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from twisted.internet.defer import Deferred, ensureDeferred
from twisted.python.failure import Failure

from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.event import MemoryEventLog
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.memory.retain import MemoryRetainStore
from kinmqtt_spi.memory.session import MemorySessionStore

if TYPE_CHECKING:
    from kinmqtt_spi.services.event import EventLog
    from kinmqtt_spi.services.plugin import Context
    from kinmqtt_spi.services.queue import QueueStore
    from kinmqtt_spi.services.retain import RetainStore
    from kinmqtt_spi.services.session import SessionStore


@hookimpl
def session_store() -> SessionStore:
    """Return a session store in memory."""
    return MemorySessionStore()


@hookimpl
def queue_store() -> QueueStore:
    """Return a queue store in memory."""
    return MemoryQueueStore()


@hookimpl
def retain_store() -> RetainStore:
    """Return a retain store in memory."""
    return MemoryRetainStore()


@hookimpl
def event_log(context: Context) -> EventLog:
    """Return an event log in memory."""
    return MemoryEventLog(context.clock.later, run=run_awaitable, report=reporter(context))


def run_awaitable(
    awaitable: Awaitable[None], done: Callable[[], object], failed: Callable[[BaseException], object]
) -> Awaitable[None]:
    """Await what a consumer's handler has returned: a Deferred, an asyncio future or a Twisted coroutine."""

    def finished(result: object) -> None:
        if isinstance(result, Failure):
            failed(cast(Any, result.value))
        else:
            done()

    if asyncio.isfuture(awaitable):
        return Deferred.fromFuture(awaitable).addBoth(finished)
    return ensureDeferred(cast(Any, awaitable)).addBoth(finished)


def reporter(context: Context) -> Callable[[str, BaseException], None]:
    """Return a function that logs a consumer's errors."""

    def report(group: str, error: BaseException) -> None:
        context.log.error("consumer group {group}: {error}", group=group, error=error)

    return report
