"""Bridges in memory: an outbox, a sink that lists what it gets, and a source that has a list."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence

from kinmqtt_spi.memory.outbox import MemoryOutbox
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Answer, Item, Publish, Sink, Source
from kinmqtt_spi.values import Maybe, Message

__all__ = ("ListSink", "ListSource", "MemoryOutbox")


class ListSink(Sink):
    """Keeps what it gets in ``taken``. Tests decide its next answers; without them it takes everything.

    ``hangs`` makes it answer later, with each of the awaitables in ``held``: only a
    :class:`~kinmqtt_spi.memory.polling.PollingRun` drives these.
    """

    def __init__(self, poison: Callable[[Item], Answer] = lambda item: None) -> None:
        self.taken: list[Item] = []
        self.batches: list[tuple[Item, ...]] = []
        """All batches, also those that were not taken."""
        self.opened = 0
        self.closed = 0
        self.answer = poison
        """Answers for each item: ``None``, ``Retry`` or ``Poison``."""
        self.errors: deque[Exception] = deque()
        """Raised by the next calls of :meth:`send`, one each."""
        self.open_errors: deque[Exception] = deque()
        """Raised by the next calls of :meth:`open`, one each."""
        self.hangs = False
        self.held: list[tuple[Pending[Sequence[Answer] | None], tuple[Item, ...]]] = []

    def open(self) -> Maybe[None]:
        self.opened += 1
        if self.open_errors:
            raise self.open_errors.popleft()
        return None

    def close(self) -> Maybe[None]:
        self.closed += 1
        return None

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        batch = tuple(items)
        self.batches.append(batch)
        if self.hangs:
            pending: Pending[Sequence[Answer] | None] = Pending()
            self.held.append((pending, batch))
            return pending
        return self.take(batch)

    def take(self, batch: Sequence[Item]) -> Sequence[Answer] | None:
        """Raise the next error, or take the items that the answers allow."""
        if self.errors:
            raise self.errors.popleft()
        answers = [self.answer(item) for item in batch]
        self.taken += [item for item, answer in zip(batch, answers, strict=True) if answer is None]
        return answers if any(answer is not None for answer in answers) else None

    def release(self) -> None:
        """Answer everything that is held, and hold nothing more."""
        self.hangs = False
        held, self.held = self.held, []
        for pending, batch in held:
            try:
                pending.complete(self.take(batch))
            except Exception as error:  # one of ``errors``
                pending.fail(error)


class ListSource(Source):
    """Publishes the messages of a list, ``batch`` at a time, and then waits until it is cancelled.

    ``acknowledged`` has those whose publication was completed; a new run begins after them. ``idle`` makes what it
    waits for at the end, such as a Deferred.
    """

    def __init__(
        self, messages: Iterable[Message], batch: int = 10, idle: Callable[[], Awaitable[None]] = Pending
    ) -> None:
        self.messages = list(messages)
        self.acknowledged: list[Message] = []
        self.runs = 0
        self.cancelled = 0
        self._batch = batch
        self._idle = idle

    async def run(self, publish: Publish) -> None:
        self.runs += 1
        while len(self.acknowledged) < len(self.messages):
            start = len(self.acknowledged)
            batch = self.messages[start : start + self._batch]
            await publish(batch)
            self.acknowledged += batch
        try:
            await self._idle()
        finally:
            self.cancelled += 1
