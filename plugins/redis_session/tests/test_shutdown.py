"""Closing the reader and draining the pipeline return, whatever callbacks the event loop has run by then."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.counters import Counters
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.retain import RetainVersion, RetainWrite
from kinmqtt_spi.testing.build import NOW, message

LIMIT_S = 30.0

FACTORIES: list[Any] = [None]
if hasattr(asyncio, "eager_task_factory"):  # Python 3.12: a task may be done before it is handed out.
    FACTORIES.append(asyncio.eager_task_factory)


class Away:
    """A link that was just lost: it still looks up, but everything sent fails at once."""

    is_up = True
    cluster = False

    async def write(self, commands: Any, replicas: int = 0) -> Any:
        """Fail before anything is awaited."""
        raise ServiceUnavailable("Redis is away")


class Prompt(Away):
    """A link that answers at once."""

    async def execute_each(self, commands: Any) -> list[Any]:
        """An answer for each."""
        return [b"here" for _ in commands]


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Interrupt code that blocks the event loop; a timeout of asyncio could not."""

    def give_up(*_: Any) -> None:
        raise AssertionError(f"it has not ended within {LIMIT_S:g} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def live(life: Callable[[], Coroutine[Any, Any, None]], factory: Any = None) -> None:
    """Run a coroutine in a loop with this task factory."""

    async def lived() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        await life()

    with not_for_ever():
        asyncio.run(lived())


def ledger_over(link: Any) -> WritePipeline:
    """A write pipeline over this link."""
    context = BareContext("redis_session", None)
    pipeline = WritePipeline(
        link, Keys("kinmqtt"), Counters(), context.log, now=lambda: NOW, remember_s=60, max_waiting=100
    )
    pipeline.begin()
    return pipeline


def commit(pipeline: WritePipeline) -> Any:
    """Commit a turn that retains a message; returns the answer."""
    pipeline.gather_retained([RetainWrite(message(retain=True), RetainVersion(NOW, 1, 1))])
    return pipeline.commit()


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_reader_closes_when_the_last_pipeline_has_just_ended(factory: Any) -> None:
    """The pipeline's task is done and its callback has not run when the caller closes the reader."""

    async def life() -> None:
        reader = BatchReader(Prompt(), 1)  # type: ignore[arg-type]
        assert await reader.execute(("PING",)) == [b"here"]
        await reader.close()
        assert not reader._in_flight

    live(life, factory)


def test_the_reader_closes_after_waiting_requests_are_answered() -> None:
    """Requests made while the maximum of pipelines is in flight are sent and awaited too."""

    async def life() -> None:
        reader = BatchReader(Prompt(), 1)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        first = loop.create_task(reader.execute(("PING",)))
        await first
        behind = loop.create_task(reader.execute(("PING",)))
        await asyncio.sleep(0)
        await reader.close()
        assert await behind == [b"here"]

    live(life)


@pytest.mark.parametrize("factory", FACTORIES)
def test_writes_are_sent_after_a_pipeline_that_failed_at_once(factory: Any) -> None:
    """Every turn is failed, even if the sender was done before create_task returned."""

    async def life() -> None:
        pipeline = ledger_over(Away())
        for _ in range(3):
            with pytest.raises(ServiceUnavailable):
                await asyncio.wait_for(commit(pipeline), LIMIT_S / 3)
        await pipeline.drained()

    live(life, factory)


def test_drained_returns_if_the_sender_was_cancelled_before_it_began() -> None:
    """An event loop that closes cancels all tasks; draining must not wait forever then."""

    async def life() -> None:
        pipeline = ledger_over(Away())
        answer = commit(pipeline)
        assert pipeline._sender is not None
        pipeline._sender.cancel()
        await pipeline.drained()
        answer.cancel()

    live(life)
