"""Outboxes in memory, for their suite."""

from __future__ import annotations

from kinmqtt_spi.memory.bridge import MemoryOutbox
from kinmqtt_spi.memory.outbox import StoredEntry
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.services.outbox import OutboxSettings
from kinmqtt_spi.testing.outbox import OutboxHouse
from kinmqtt_spi.values import Message


class MemoryHouse(OutboxHouse):
    """Makes outboxes of a class over the same dict."""

    def __init__(self, clock: TurnableClock, made: type[MemoryOutbox] = MemoryOutbox) -> None:
        self.clock = clock
        self._made = made
        self._stored: dict[int, StoredEntry] = {}
        self.outbox: MemoryOutbox | None = None

    def open(self, settings: OutboxSettings) -> MemoryOutbox:
        if self.outbox is None:
            self.outbox = self._made("sink", settings, self.clock, self._stored)
        return self.outbox

    def turn(self, seconds: float = 0.0) -> None:
        self.clock.advance(seconds)

    def kill(self) -> None:
        assert self.outbox is not None
        self.outbox.is_gone = True
        self.outbox = None

    def publish(self, message: Message) -> None:
        assert self.outbox is not None
        self.outbox.publish(message)
