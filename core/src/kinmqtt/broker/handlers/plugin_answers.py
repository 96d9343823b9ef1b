"""Waiting for plugins' answers while a client may disconnect."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar

from twisted.internet.defer import Deferred

from kinmqtt.hooks.awaitables import as_deferred
from kinmqtt_spi.values import Maybe

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection

T = TypeVar("T")


async def while_connected(connection: Connection, answer: Maybe[T]) -> T:
    """Wait for plugins' answer about a client; if its connection ends, the wait is cancelled.

    The connection then cancels its ``pending_answer``, which raises the cancellation here.
    """
    if not isinstance(answer, Awaitable):
        return answer
    asked: Deferred[T] = as_deferred(answer)
    connection.pending_answer = asked
    try:
        result: T = await asked
        return result
    finally:
        connection.pending_answer = None
