"""Batches of turns: what the broker's turns write, gathered until it goes to Redis in one pipeline."""

from __future__ import annotations

import asyncio

from attrs import define, field

from kinmqtt_redis_session import codec
from kinmqtt_redis_session.keys import topic_shard
from kinmqtt_redis_session.phases import Numbered
from kinmqtt_redis_session.writes import ClientWrite
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.retain import RetainWrite, retained_bytes

Touched = set[str | int]
"""Client ids, and shards of the retained messages."""


@define(slots=True)
class TurnWrites:
    """The writes of one turn of the broker."""

    clients: list[ClientWrite]
    retain: list[RetainWrite]
    answer: asyncio.Future[None]

    @property
    def touches(self) -> Touched:
        """The clients and shards that this turn writes to."""
        shards: Touched = {topic_shard(codec.text(write.message.topic)) for write in self.retain}
        return shards.union(write.client_id for write in self.clients)


@define(slots=True)
class Batch:
    """Turns that go to Redis in one pipeline."""

    turns: list[TurnWrites] = field(factory=list)
    clients: dict[str, Numbered] = field(factory=dict)
    retain: list[RetainWrite] = field(factory=list)
    retained_count: int = 0
    retained_bytes: int = 0
    """An upper bound: messages that replace a retained message count in full."""
    writes: int = 0

    def add(self, turn: TurnWrites) -> None:
        """Add a turn."""
        number = len(self.turns)
        self.turns.append(turn)
        for write in turn.clients:
            self.clients.setdefault(write.client_id, []).append((number, write))
        self.retain += turn.retain
        for retained in turn.retain:
            if retained.message.payload:
                self.retained_count += 1
                self.retained_bytes += retained_bytes(retained.message)
        self.writes += len(turn.clients) + len(turn.retain)

    def fail(self, touched: Touched, error: Exception) -> Batch:
        """Fail the turns that write to ``touched``, and later turns that write to what those touch.

        Adds what the failed turns touch to ``touched``. Returns a batch of the other turns.
        """
        others = Batch()
        for turn in self.turns:
            touches = turn.touches
            if touches & touched:
                touched |= touches
                if not turn.answer.done():
                    turn.answer.set_exception(error)
            else:
                others.add(turn)
        return others

    def fail_all(self, error: Exception) -> None:
        """Fail all turns that have no answer yet."""
        for turn in self.turns:
            if not turn.answer.done():
                turn.answer.set_exception(
                    error if isinstance(error, ServiceUnavailable) else ServiceUnavailable(f"Redis: {error}")
                )
