"""Runs a source beside a test, and takes what it publishes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from kinmqtt_spi.services.bridge import Source
from kinmqtt_spi.values import Message


class Published:
    """What sources have published; ``before`` is called with each batch, and may raise or wait."""

    def __init__(self, before: Callable[[Sequence[Message]], Any] | None = None) -> None:
        self.messages: list[Message] = []
        self._before = before

    async def __call__(self, messages: Sequence[Message]) -> None:
        """Publish, as the broker would."""
        if self._before is not None:
            answer = self._before(messages)
            if answer is not None:
                await answer
        self.messages += messages

    @property
    def payloads(self) -> list[bytes]:
        """The payloads, in order."""
        return [message.payload for message in self.messages]


@asynccontextmanager
async def running(source: Source, publish: Published) -> AsyncIterator[asyncio.Task[None]]:
    """A source that runs, until it is cancelled as the broker does."""
    task = asyncio.ensure_future(source.run(publish))
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
