"""Publisher confirms: which messages RabbitMQ has, which it rejects, and which it could route nowhere."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, Final

from pika.spec import Basic, BasicProperties

from kinmqtt_spi.services.bridge import Answer, Poison, Retry

MAX_RETURNED: Final = 1000
"""Returned messages that are remembered before those that were answered are forgotten."""

REJECTED: Final = Retry("RabbitMQ rejects it (basic.nack): a queue is full, or can't store it")


class Batch:
    """The messages of one call, and their answers."""

    __slots__ = ("answers", "done", "left")

    def __init__(self, count: int) -> None:
        self.answers: list[Answer] = [None] * count
        self.left = 0
        """How many are published and not answered yet."""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Completes when all are answered, or none will be any more."""

    def end(self) -> None:
        """Complete it."""
        if not self.done.done():
            self.done.set_result(None)


class Confirms:
    """What is published on a channel and not answered yet, by delivery tag."""

    def __init__(self) -> None:
        self._pending: OrderedDict[int, tuple[Batch, int, str, str]] = OrderedDict()
        self._last_tag = 0
        self._returned: dict[tuple[str, str], int] = {}
        """The last tag when a message came back, by its id and routing key."""

    def published(self, batch: Batch, number: int, identity: str, routing_key: str) -> None:
        """Note that a message of a batch has just been published."""
        self._last_tag += 1
        self._pending[self._last_tag] = (batch, number, identity, routing_key)
        batch.left += 1

    def returned(self, channel: object, method: Basic.Return, properties: BasicProperties, body: bytes) -> None:
        """Take ``basic.return``: the message could be routed nowhere. A plain ack follows, which it outweighs.

        Nothing but the id says which one it was. If the same message is under way twice, both count as returned: one
        that is parked though it has arrived is better than one that is lost.
        """
        if len(self._returned) >= MAX_RETURNED:
            oldest = next(iter(self._pending), self._last_tag + 1)
            self._returned = {key: tag for key, tag in self._returned.items() if tag >= oldest}
        self._returned[properties.message_id or "", method.routing_key or ""] = self._last_tag

    def answered(self, frame: Any) -> None:
        """Take ``basic.ack`` or ``basic.nack``, of one message or of all up to one."""
        method = frame.method
        nacked = isinstance(method, Basic.Nack)
        pending, tag = self._pending, method.delivery_tag
        if not method.multiple:
            entry = pending.pop(tag, None)
            if entry is not None:
                self._settle(entry, nacked)
        else:
            while pending:
                first, entry = pending.popitem(last=False)
                if tag and first > tag:
                    pending[first] = entry
                    pending.move_to_end(first, last=False)
                    break
                self._settle(entry, nacked)
        if not pending:
            self._returned.clear()

    def end(self) -> None:
        """Complete all batches: no answer comes any more."""
        for batch, *_ in self._pending.values():
            batch.end()

    def _settle(self, entry: tuple[Batch, int, str, str], nacked: bool) -> None:
        batch, number, identity, routing_key = entry
        if self._returned and (identity, routing_key) in self._returned:
            batch.answers[number] = Poison(
                f"RabbitMQ has no queue for the routing key {routing_key[:100]!r}: bind one to the exchange"
            )
        elif nacked:
            batch.answers[number] = REJECTED
        batch.left -= 1
        if not batch.left:
            batch.end()
