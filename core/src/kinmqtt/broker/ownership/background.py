"""Background work on sessions."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from twisted.logger import Logger

from kinmqtt.hooks.awaitables import run

log = Logger("kinmqtt.sessions")


def in_background(work: Coroutine[Any, Any, None], client_id: str) -> None:
    """Start a coroutine in the background; a failure is logged."""
    run(work).addErrback(
        lambda failure: log.failure("background work for client {client_id!r} failed", failure, client_id=client_id)
    )
