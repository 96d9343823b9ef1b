"""Tasks on asyncio that nobody awaits: their failures are logged."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

from kinmqtt_spi.services.plugin import Log


class Tasks:
    """Runs coroutines until they end or are cancelled together."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], what: str) -> None:
        """Run a coroutine on the running loop; ``what`` says in the log what has failed."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(partial(self._done, what))

    def cancel(self) -> None:
        """Cancel all that run."""
        for task in self._tasks:
            task.cancel()

    def _done(self, what: str, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            text = "{what} has failed: {kind}: {error}"
            self._log.error(text, what=what, kind=type(error).__name__, error=error)
