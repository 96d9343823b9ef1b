"""Nodes that ship what they retain, without a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import count
from typing import Any

from event_kafka_harness.making import settings
from kinmqtt_event_kafka.retained import OUTBOX, RetainedShipper
from kinmqtt_spi.memory.outbox import MemoryOutbox
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.outbox import Accepted
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.values import Message, MessageId, Publisher

_numbers = count(1)


class Node:
    """A node with its plugin, its retain store and its outbox."""

    def __init__(self, address: str, topic: str, of: Node | None = None, **more: Any) -> None:
        """``of``: another node that has the same retain store, or the one before a restart."""
        self.context = BareContext("event_kafka")
        if of is not None:
            self.context.retain_store = of.context.retain_store
        its = settings(address, "events", retained_topic=topic, **more)
        self.shipper = RetainedShipper(its, self.context)

    def start(self, left: MemoryOutbox | None = None) -> None:
        """Start; ``left`` is the outbox before a restart, or of a node that is gone."""
        if left is not None:
            left.is_gone = True
            outbox = MemoryOutbox("retained", OUTBOX, self.context.clock, left.stored)
            context: Any = self.context
            context.outbox = lambda name, settings, filters=(): outbox
            self.context.outboxes["retained"] = outbox
        self.shipper.start()
        self.shipper.begin()

    def retain(self, topic: str, payload: bytes) -> None:
        """Retain a message as the broker does: the hook first, then the store and the outbox in one commit."""
        self.shipper.note(topic)
        number = next(_numbers)
        message = Message(topic, payload, 1, True, publisher=Publisher("c"), id=MessageId(7, number))
        message = message.received(message.id, 1_700_000_000.0 + number, None)
        self.context.retain_store.put([RetainWrite(message, RetainVersion(message.received_at, *message.id))])
        self.context.clock.advance()

    def fill(self) -> None:
        """Have an outbox that takes nothing more."""
        self.context.outboxes["retained"].put = lambda message: Accepted.DROPPED  # type: ignore[method-assign]

    async def until(self, condition: Callable[[], object]) -> None:
        """Wait, while time passes for the outbox."""
        async with asyncio.timeout(60):
            while not condition():
                self.context.clock.advance()
                await asyncio.sleep(0.01)

    async def idle(self) -> None:
        """Wait until everything is written, and the outbox knows it."""
        figures = self.context.outboxes["retained"].figures
        await self.until(
            lambda: self.shipper._is_copied and not self.shipper.waiting and not figures().queued + figures().inflight
        )
        self.context.clock.advance()  # The commit of what was acknowledged last.
