"""A sink's runner over outboxes in memory, on a clock that tests control."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from kinmqtt_spi.bridging.environment import Environment
from kinmqtt_spi.bridging.parking import Parking
from kinmqtt_spi.bridging.runner import SinkRunner
from kinmqtt_spi.memory.bridge import ListSink, MemoryOutbox
from kinmqtt_spi.memory.outbox import StoredEntry
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.memory.polling import PollingRun
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.bridge import PARKED_MESSAGES, SendSettings, Sink, SinkPlan, SinkState
from kinmqtt_spi.services.outbox import AtMostOnce, OutboxSettings, WhenFull
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.values import Message, Publisher

PARKED = OutboxSettings(max_messages=PARKED_MESSAGES, when_full=WhenFull.DROP_OLDEST, qos_0=AtMostOnce.STORE)


class NotingParking(Parking):
    """Notes what is to be parked, whether that succeeds or not."""

    def __init__(self, outbox: MemoryOutbox) -> None:
        super().__init__(outbox, outbox.after_commit)
        self.given: list[Message] = []

    def park(self, message: Message, why: str, done: Callable[[], None], failed: Callable[[], None]) -> None:
        self.given.append(message)
        super().park(message, why, done, failed)


class Bench:
    """One sink, its outboxes, and what its runner reports."""

    def __init__(
        self,
        sink: Sink | None = None,
        *,
        window: int = 4096,
        stored: dict[int, StoredEntry] | None = None,
        parked: dict[int, StoredEntry] | None = None,
        clock: TurnableClock | None = None,
        **sending: Any,
    ) -> None:
        self.clock = TurnableClock() if clock is None else clock
        self.polling = PollingRun()
        self.log = RecordingLog()
        self.registry = MetricRegistry()
        self.environment = Environment(self.clock, self.polling, Random(1), self.log, self.registry)
        self.outbox = MemoryOutbox("readings", OutboxSettings(window=window), self.clock, stored)
        self.parked = MemoryOutbox("readings.parked", PARKED, self.clock, parked)
        self.parking = NotingParking(self.parked)
        self.list = ListSink()
        self.plan = SinkPlan(self.list if sink is None else sink, ("#",), sending=SendSettings(**sending))
        self.states: list[SinkState] = []
        self.poisoned: list[tuple[Message, str]] = []
        self.runner = SinkRunner(
            "kafka:readings",
            self.plan,
            self.outbox,
            self.parking,
            self.environment,
            lambda state, why: self.states.append(state),
            lambda message, why: self.poisoned.append((message, why)),
        )
        self._numbers = 0

    def put(self, *clients: str, **fields: Any) -> list[bytes]:
        """Put a message of each of these clients in; return their payloads."""
        payloads = []
        for client in clients:
            self._numbers += 1
            payloads.append(b"%d" % self._numbers)
            self.outbox.put(
                message(
                    payload=payloads[-1], publisher=Publisher(client), **{"number": self._numbers, "qos": 1, **fields}
                )
            )
        return payloads

    def turn(self, seconds: float = 0.0) -> None:
        """Let time pass, and everything go on that can."""
        self.clock.advance(seconds)
        for _ in range(3):
            self.polling.turn()
            self.clock.advance()

    def sum(self, name: str) -> float:
        """Return the sum of a metric."""
        return self.registry.sum(name)


def payloads(items: Any) -> list[bytes]:
    """Return the payloads of items."""
    return [item.message.payload for item in items]
