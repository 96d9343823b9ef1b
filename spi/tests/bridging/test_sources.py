"""A source's runner: it is called again after pauses, counted, and cancelled at the stop."""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from typing import Any

import pytest

from kinmqtt_spi.bridging.sources import SourceRunner
from kinmqtt_spi.errors import NotCommitted, PublishRefused, SinkRefused
from kinmqtt_spi.memory.bridge import ListSource
from kinmqtt_spi.memory.polling import Pending
from kinmqtt_spi.services.bridge import Publish, Source
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.values import Message
from spi_harness.bridge_bench import Bench


class SourceBench(Bench):
    """A source, and a publisher that tests let fail."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self.published: list[Message] = []
        self.errors: list[Exception] = []
        self.source = SourceRunner("kafka:commands", source, self.publish, self.environment)

    async def publish(self, messages: Sequence[Message]) -> None:
        if self.errors:
            raise self.errors.pop(0)
        self.published += messages


def test_a_source_publishes_and_is_cancelled() -> None:
    """What it brings is counted; the stop cancels it and waits for its end."""
    source = ListSource([message(number=number) for number in range(25)])
    bench = SourceBench(source)
    ended: list[bool] = []

    bench.source.start()
    bench.turn()
    bench.source.stop(5, lambda: ended.append(True))
    bench.turn()

    assert len(source.acknowledged) == 25
    assert source.cancelled == 1
    assert ended == [True]
    assert bench.sum("source.received") == bench.sum("source.published") == 25
    assert bench.clock.pending() == 0


@pytest.mark.parametrize("error", [NotCommitted("the disk"), PublishRefused("full")])
def test_a_source_is_called_again_after_a_refused_publication(error: Exception) -> None:
    """What was refused is counted, and comes again; the failure is known until something is published."""
    source = ListSource([message()])
    bench = SourceBench(source)
    bench.errors.append(error)

    bench.source.start()
    bench.turn()
    assert str(error) in (bench.source.error or "")
    bench.turn(0.1)

    assert source.runs == 2
    assert len(source.acknowledged) == 1
    assert bench.sum("source.refused") == 1
    assert bench.source.error is None


def test_a_source_that_waits_for_room_is_known_to_wait() -> None:
    """Though it never fails: the broker's health and one line say that it can't publish."""

    class Patient(Source):
        async def run(self, publish: Publish) -> None:
            while True:
                try:
                    await publish([message()])
                    break
                except PublishRefused:
                    errors.append(bench.source.error)
            await Pending[None]()

    errors: list[str | None] = []
    bench = SourceBench(Patient())
    bench.errors += [PublishRefused("a full outbox refused it")] * 3

    bench.source.start()
    bench.turn()

    assert errors == ["a full outbox refused it"] * 3
    [line] = bench.log.texts("warn")
    assert "source kafka:commands can't publish: a full outbox refused it" in line
    assert bench.source.error is None
    assert bench.log.texts("info") == ["source kafka:commands works again"]


def test_a_source_that_ends_or_answers_nothing_is_called_again() -> None:
    """It has pauses that double, and a line names it."""

    class Ends(Source):
        runs = 0

        def run(self, publish: Publish) -> Any:
            self.runs += 1

    source = Ends()
    bench = SourceBench(source)
    bench.source.start()
    for _ in range(100):
        bench.turn(0.1)

    assert 5 <= source.runs <= 8
    [line] = bench.log.texts("warn")
    assert "source kafka:commands" in line


def test_a_refused_source_waits_a_minute() -> None:
    """``SinkRefused`` needs an operator."""

    class Refused(Source):
        runs = 0

        async def run(self, publish: Publish) -> None:
            self.runs += 1
            raise SinkRefused("wrong password")

    source = Refused()
    bench = SourceBench(source)
    bench.source.start()
    bench.turn(59)
    assert source.runs == 1
    bench.turn(1)

    assert source.runs == 2


def test_a_source_that_goes_on_is_left_alone_after_the_deadline() -> None:
    """The stop ends, and a line says so."""

    class Stubborn(Source):
        async def run(self, publish: Publish) -> None:
            for _ in range(2):
                try:
                    await Pending[None]()
                except BaseException:
                    continue

    bench = SourceBench(Stubborn())
    bench.source.start()
    ended: list[float] = []

    bench.source.stop(3, lambda: ended.append(bench.clock.monotonic()))
    bench.turn(3)

    assert ended == [3.0]
    assert "did not end in time" in bench.log.texts("error")[0]


def test_a_source_in_a_pause_stops_at_once() -> None:
    """Nothing is called any more; a second stop answers at once."""
    source = ListSource([message()])
    bench = SourceBench(source)
    bench.errors.append(PublishRefused("full"))
    bench.source.start()
    ended: list[int] = []

    bench.source.stop(3, lambda: ended.append(1))
    bench.source.stop(3, lambda: ended.append(2))
    bench.turn(60)

    assert ended == [1, 2]
    assert source.runs == 1


def test_a_source_that_raises_asyncios_cancellation_at_once_is_called_again() -> None:
    """Nobody has cancelled it."""
    source = ListSource([message()])
    run = source.run
    errors = [CancelledError()]

    def failing(publish: Publish) -> Any:
        if errors:
            raise errors.pop()
        return run(publish)

    source.run = failing  # type: ignore[method-assign]
    bench = SourceBench(source)
    bench.source.start()
    bench.turn(0.1)

    assert len(source.acknowledged) == 1
