"""Sinks for the tests of a whole broker."""

from __future__ import annotations

from collections.abc import Sequence

from twisted.internet.defer import Deferred

from kinmqtt_spi.memory.bridge import ListSink
from kinmqtt_spi.services.bridge import Answer, Item
from kinmqtt_spi.values import Maybe


class HangingSink(ListSink):
    """Answers when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[tuple[Deferred[Sequence[Answer] | None], Sequence[Item]]] = []
        self.hanging = True

    def send(self, items: Sequence[Item]) -> Maybe[Sequence[Answer] | None]:
        if not self.hanging:
            return super().send(items)
        answer: Deferred[Sequence[Answer] | None] = Deferred()
        self.waiting.append((answer, items))
        return answer

    def go_on(self) -> None:
        """Take everything, now and from now on."""
        self.hanging = False
        waiting, self.waiting = self.waiting, []
        for answer, items in waiting:
            answer.callback(self.take(items))

    @property
    def payloads(self) -> list[bytes]:
        """What it has taken."""
        return [item.message.payload for item in self.taken]
