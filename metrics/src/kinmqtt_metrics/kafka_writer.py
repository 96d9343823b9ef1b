"""Writes records into a topic of Kafka: each line is a record, whose key is the node.

The writing thread has an event loop of its own for aiokafka, which runs during its steps. So the sink needs no
certain reactor, and neither encoding nor compression takes the reactor's time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

from kinmqtt_kafka_kit import unavailable
from kinmqtt_kafka_kit.writer import TopicWriter
from kinmqtt_metrics.line_writer import BREATH_S, IDLE_S, RETRY_S, STUCK_S, Batch, LineWriter, Unwritten
from kinmqtt_metrics.spool import UNFIT, WRITE_FAILED, Spool

if TYPE_CHECKING:
    from kinmqtt_metrics.kafka_settings import KafkaSettings
    from kinmqtt_metrics.settings import MetricsSettings

_AT_ONCE: Final = 2048
"""Records of a step at most: they wait for one answer, or a few."""

_OVERHEAD: Final = 100
"""What a batch has beside its only record and the key, in bytes: less than this."""


class KafkaWriter(LineWriter):
    """Sends lines in batches, in order. What Kafka may not have got is sent again: readers know it by ``seq``."""

    def __init__(
        self, spool: Spool, settings: KafkaSettings, node: str, boot: str, monotonic: Callable[[], float]
    ) -> None:
        super().__init__(spool, node, boot, monotonic)
        self.stuck_s = settings.timeout_s + STUCK_S
        self._settings = settings
        self._key = node.encode()
        self._longest = settings.max_batch_bytes - len(self._key) - _OVERHEAD
        self._lines: list[bytes] = []
        """Of the batch, without their ends."""
        self._runner: asyncio.Runner | None = None
        self._topic = TopicWriter(settings, settings.topic, settings.max_batch_bytes, "gzip")

    @property
    def stuck(self) -> str:
        """The topic."""
        return f"topic {self._settings.topic!r}: the Kafka client does not respond"

    def go_by(self, settings: MetricsSettings) -> None:
        """Nothing can change."""

    def _turn(self) -> float:
        try:
            busy = self.step()
        except (OSError, Unwritten) as error:
            self._figures.failures.value += 1
            # The first reason stays: later ones differ with each attempt, and each would be a line of the log.
            self._failed(WRITE_FAILED, self.trouble or f"topic {self._settings.topic!r}: {error}")
            return RETRY_S
        self._well()
        return BREATH_S if busy else IDLE_S

    def step(self) -> bool:
        """Send the next records, and wait until Kafka has acknowledged them; whether there are more."""
        if self._runner is None:
            self._runner = asyncio.Runner()
        return self._runner.run(self._step())

    def publish(self) -> None:
        """What was acknowledged is published."""

    async def _step(self) -> bool:
        if self._batch is None:
            await self._gather()
        if self._batch is None:
            # aiokafka looks after its connections meanwhile.
            await asyncio.sleep(0)
            return bool(self.spool)
        if self._lines:
            try:
                async with asyncio.timeout(self._limit_s()):
                    answers = await self._topic.write(
                        [(number, self._key, line, [], None) for number, line in enumerate(self._lines)]
                    )
            except Exception as error:
                raise Unwritten(str(unavailable(error))) from error
            self._acknowledged([answer is None for answer in answers])
        self.spool.done(self._batch.size_bytes)
        self._batch = None
        return bool(self.spool)

    def _limit_s(self) -> float:
        limit_s = self._settings.timeout_s
        return limit_s if self.ends_at is None else max(0.1, min(limit_s, self.ends_at - self._monotonic()))

    async def _gather(self) -> None:
        """Encode some slices; between two of them the reactor gets the interpreter."""
        size_bytes = 0
        while len(self._lines) < _AT_ONCE and size_bytes < self._settings.max_batch_bytes:
            encoded = self._encoded()
            if encoded is None:
                return
            size_bytes += len(encoded.data)
            lines = encoded.data.splitlines()
            fit = [line for line in lines if len(line) <= self._longest]
            self._figures.dropped[UNFIT].value += len(lines) - len(fit)
            self._lines += fit
            before = self._batch.size_bytes if self._batch is not None else 0
            self._batch = Batch(b"", len(self._lines), before + encoded.size_bytes)
            await asyncio.sleep(BREATH_S)

    def _acknowledged(self, taken: Sequence[bool]) -> None:
        """Count what Kafka has, and what the topic does not take for its size."""
        sent = [line for line, is_taken in zip(self._lines, taken, strict=True) if is_taken]
        self._figures.dropped[UNFIT].value += len(self._lines) - len(sent)
        self._written(len(sent), sum(map(len, sent)) + len(sent), 0)
        self._lines = []

    def let_go(self) -> None:
        """Disconnect."""
        runner, self._runner = self._runner, None
        if runner is None:
            return
        try:
            runner.run(self._topic.close())
        finally:
            runner.close()
