"""The writer to Kafka: what it counts, and what it does about a Kafka that refuses. None is there."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import pytest
from attrs import define, field

from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics.kafka_settings import KafkaSettings, SettingsWithKafka
from kinmqtt_metrics.kafka_writer import KafkaWriter
from kinmqtt_metrics.line_writer import RETRY_S
from kinmqtt_metrics.spool import RECORD_BYTES, UNFIT, Figures, Spool
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.bridge import Answer, Poison
from kinmqtt_spi.testing.driving import TurningDriver


@define
class Topic:
    """Stands in for the topic's writer."""

    fails: list[Exception] = field(factory=list)
    refuses: bytes = b"\0"
    written: list[bytes] = field(factory=list)
    is_closed: bool = False

    async def write(self, records: Sequence[Any]) -> list[Answer]:
        if self.fails:
            raise self.fails.pop()
        answers: list[Answer] = [None] * len(records)
        for number, key, line, _, _ in records:
            assert key == b"n"
            if self.refuses in line:
                answers[number] = Poison("too large")
            else:
                self.written.append(line)
        return answers

    async def close(self) -> None:
        self.is_closed = True


class Scene:
    """A writer without a thread."""

    def __init__(self) -> None:
        self.figures = Figures(MetricRegistry())
        self.spool = Spool(1000 * RECORD_BYTES, self.figures)
        settings = KafkaSettings(servers=("127.0.0.1:9",), max_batch_bytes=1 << 16)
        self.writer = KafkaWriter(self.spool, settings, "n", "00000000c0ffee01", time.monotonic)
        self.topic = Topic()
        topic: Any = self.topic
        self.writer._topic = topic

    def offer(self, *names: str) -> None:
        for name in names:
            assert self.spool.offer(1, {"kind": "event", "name": name})

    def finish(self) -> None:
        while self.writer.step():
            pass
        self.writer.let_go()

    @property
    def names(self) -> list[str]:
        return [json.loads(line)["name"] for line in self.topic.written]


def test_what_a_batch_can_not_have_is_dropped_and_counted() -> None:
    """By the setting max_batch_bytes, or by the topic; the others are written."""
    scene = Scene()
    scene.topic.refuses = b"refused"
    scene.offer("a", "x" * (1 << 16), "refused", "b")
    scene.finish()

    assert scene.names == ["a", "b"]
    figures = scene.figures
    assert (figures.written.value, figures.dropped[UNFIT].value, scene.spool.waiting_bytes) == (2, 2, 0)
    assert figures.bytes.value == sum(map(len, scene.topic.written)) + 2
    assert scene.topic.is_closed


def test_only_what_is_too_long_asks_nobody() -> None:
    """There is nothing to send."""
    scene = Scene()
    scene.topic.fails = [AssertionError("nothing is to be written")]
    scene.offer("x" * (1 << 16))
    scene.finish()

    assert (scene.figures.dropped[UNFIT].value, scene.spool.waiting_bytes) == (1, 0)


def test_what_failed_is_sent_again_as_it_was() -> None:
    """In its order and with its numbers; the first reason is told."""
    scene = Scene()
    scene.topic.fails = [ServiceUnavailable("second"), ServiceUnavailable("first")]
    scene.offer("a", "b")

    assert [scene.writer.turn(), scene.writer.turn()] == [RETRY_S, RETRY_S]
    assert scene.writer.trouble == "topic 'kinmqtt.metrics': first"
    scene.offer("c")
    scene.finish()

    assert scene.names == ["a", "b", "c"]
    assert [json.loads(line)["seq"] for line in scene.topic.written] == [1, 2, 3]
    assert scene.figures.failures.value == 2


def test_aiokafkas_lines_are_logged_by_the_reactors_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on a reactor without an event loop: the sink's timer brings what its writing thread has heard."""
    turned = threading.Event()

    def turn(writer: KafkaWriter) -> float:
        if not turned.is_set():
            logging.getLogger("aiokafka.client").error("from %s", threading.current_thread().name)
            turned.set()
        return RETRY_S

    monkeypatch.setattr(KafkaWriter, "turn", turn)
    monkeypatch.setattr(KafkaWriter, "step", lambda writer: False)
    settings: Any = SettingsWithKafka(sink="kafka", kafka=KafkaSettings(servers=("127.0.0.1:9",)))
    context = BareContext("metrics", settings)
    sink = MetricsSink()
    sink.configure(context)
    drive: Any = TurningDriver(context.clock)
    drive(sink.start(context))
    assert turned.wait(30)
    assert context.log.texts("debug") == []

    context.clock.advance(settings.roll_s)

    assert context.log.texts("debug") == ["aiokafka: from kinmqtt-metrics"]
    drive(sink.stop())
    assert logging.getLogger("aiokafka").handlers == []
