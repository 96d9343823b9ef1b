"""Reads records in batches, and passes over those that aiokafka can't read."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition

READ_PAUSE_S: Final = 1.0
"""How long one look for records takes, at most, if there are none, in seconds."""

READ_PAUSE_MS: Final = int(READ_PAUSE_S * 1000)

Records = Mapping[TopicPartition, Sequence[Any]]
Offsets = Mapping[TopicPartition, int]


class Reader:
    """Reads what a consumer's partitions have.

    aiokafka decodes the names of headers, and raises ``UnicodeDecodeError`` for one that is not UTF-8. It does not
    say where, and what the same call took of other partitions is lost. So the partitions are then read again record
    by record, from where the last batch ended.
    """

    def __init__(
        self, consumer: AIOKafkaConsumer, batch: int, skipped: Callable[[TopicPartition, int], None]
    ) -> None:
        """``skipped`` is called for each record that is passed over, with its partition and offset."""
        self._consumer = consumer
        self._batch = batch
        self._skipped = skipped
        self._next: dict[TopicPartition, int] = {}
        """The offsets of what was not published yet."""

    async def read(self) -> tuple[Records, Offsets]:
        """Return records, and the offsets to commit when they are published; both are empty if there are none."""
        await self._note_positions()
        if not self._next:
            await self._consumer.getmany()  # waits for an assignment, and raises what is wrong with the group
            await asyncio.sleep(0 if self._consumer.assignment() else READ_PAUSE_S)
            return {}, {}
        try:
            found: Records = await self._consumer.getmany(
                *self._next, timeout_ms=READ_PAUSE_MS, max_records=self._batch
            )
        except UnicodeDecodeError:
            return await self._read_singly()
        return found, {place: records[-1].offset + 1 for place, records in found.items()}

    def published(self, offsets: Offsets) -> None:
        """Note that everything before these offsets is published."""
        self._next.update(offsets)

    async def _note_positions(self) -> None:
        """Note where new partitions begin; one whose position is not known yet is left out."""
        assigned = self._consumer.assignment()
        for place in self._next.keys() - assigned:
            del self._next[place]
        for place in assigned - self._next.keys():
            try:
                async with asyncio.timeout(0 if self._next else READ_PAUSE_S):
                    self._next[place] = await self._consumer.position(place)
            except TimeoutError:
                continue

    async def _read_singly(self) -> tuple[Records, Offsets]:
        found: dict[TopicPartition, list[Any]] = {}
        offsets: dict[TopicPartition, int] = {}
        left = self._batch
        for place, offset in self._next.items():
            self._consumer.seek(place, offset)
        for place in list(self._next):
            while left:
                try:
                    got = await self._consumer.getmany(place, timeout_ms=READ_PAUSE_MS, max_records=1)
                except UnicodeDecodeError:
                    offset = await self._consumer.position(place)
                    self._skipped(place, offset)
                    self._consumer.seek(place, offset + 1)
                    offsets[place] = offset + 1
                else:
                    if not got:
                        break
                    [record] = got[place]
                    found.setdefault(place, []).append(record)
                    offsets[place] = record.offset + 1
                left -= 1
        return found, offsets
