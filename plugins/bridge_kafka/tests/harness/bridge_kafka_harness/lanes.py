"""Runs a sink as the broker does: lanes by key, a batch of a lane at a time, and again what was not taken."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from zlib import crc32

from kinmqtt_bridge_kafka.sink import KafkaSink
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.bridge import Item, Poison, Retry
from spi_harness.waiting import until

PAUSE_S = 0.05
"""The pause after a failure."""


class Lanes:
    """Sends items until all are taken; counts what happened on the way."""

    def __init__(self, sink: KafkaSink, parallel: int = 1, batch: int = 50) -> None:
        self._sink = sink
        self._parallel = parallel
        self._batch = batch
        self._opening = asyncio.Lock()
        self._age = 0
        self.taken: list[Item] = []
        self.poison: list[Item] = []
        self.failures: list[str] = []

    async def send(self, items: Sequence[Item]) -> None:
        """Send these; returns when the sink has taken or refused each."""
        lanes: list[list[Item]] = [[] for _ in range(self._parallel)]
        for each in items:
            lanes[crc32(each.key) % self._parallel].append(each)
        await asyncio.gather(*map(self._lane, lanes))

    async def _lane(self, waiting: list[Item]) -> None:
        while waiting:
            age, batch = self._age, waiting[: self._batch]
            try:
                answers = await self._sink.send(batch) or [None] * len(batch)
            except ServiceUnavailable as error:
                self.failures.append(str(error))
                await self._open_again(age)
                continue
            again = []
            for each, answer in zip(batch, answers, strict=True):
                if isinstance(answer, Retry):
                    again.append(each)
                elif isinstance(answer, Poison):
                    self.poison.append(each)
                else:
                    self.taken.append(each)
            waiting[: self._batch] = again
            if again:
                await asyncio.sleep(PAUSE_S)

    async def _open_again(self, age: int) -> None:
        async with self._opening:
            while age == self._age:
                try:
                    await self._sink.open()
                except ServiceUnavailable as error:
                    self.failures.append(str(error))
                    await asyncio.sleep(PAUSE_S)
                else:
                    self._age += 1


async def until_alone() -> None:
    """Wait until no other task runs."""
    await until(lambda: len(asyncio.all_tasks()) == 1, "all tasks have ended")


def firsts(records: Sequence[object]) -> list[tuple[bytes, bytes]]:
    """Keys and ids of records, without repeated ids."""
    found: dict[bytes, bytes] = {}
    for record in records:
        headers = dict(record.headers)  # type: ignore[attr-defined]
        found.setdefault(headers["mqtt-id"], record.key)  # type: ignore[attr-defined]
    return [(key, identity) for identity, key in found.items()]
