"""What is on its way to Redis ends: whoever waits for that goes on, whatever the event loop has run by then."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.mirror import Mirror
from kinmqtt_redis_session.turn import Ledger
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.retain import RetainWrite
from kinmqtt_spi.testing.build import NOW, message

LIMIT_S = 30.0

FACTORIES: list[Any] = [None]
if hasattr(asyncio, "eager_task_factory"):  # Python 3.12: a task may be done before it is handed out.
    FACTORIES.append(asyncio.eager_task_factory)


class Away:
    """A link that has just been lost: it looks up, and whatever is sent fails at once."""

    is_up = True
    cluster = False

    async def write(self, commands: Any, replicas: int = 0) -> Any:
        """Fail, before anything was waited for."""
        raise ServiceUnavailable("Redis is away")


class Prompt(Away):
    """A link that has every answer at hand."""

    async def ask_each(self, commands: Any) -> list[Any]:
        """An answer for each."""
        return [b"here" for _ in commands]


@contextmanager
def not_for_ever() -> Iterator[None]:
    """Interrupt what keeps the event loop to itself: no timeout of asyncio's could end that."""

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
    """Run something in a loop with that task factory."""

    async def lived() -> None:
        asyncio.get_running_loop().set_task_factory(factory)
        await life()

    with not_for_ever():
        asyncio.run(lived())


def ledger_over(link: Any) -> Ledger:
    """What turns' writes go through, over that link."""
    context = BareContext("redis_session", None)
    ledger = Ledger(link, Keys("kinmqtt"), Mirror(), context.log, now=lambda: NOW, remember_s=60, max_waiting=100)
    ledger.begin()
    return ledger


def commit(ledger: Ledger) -> Any:
    """The answer of a turn that retains a message."""
    ledger.gather_retained([RetainWrite(message(retain=True), (NOW, 1))])
    return ledger.commit()


@pytest.mark.parametrize("factory", FACTORIES)
def test_the_asker_closes_where_the_last_pipeline_has_just_ended(factory: Any) -> None:
    """Its task is done, and its callback has not run, when the one who asked goes on and closes."""

    async def life() -> None:
        asker = Asker(Prompt(), 1)  # type: ignore[arg-type]
        assert await asker.ask(("PING",)) == [b"here"]
        await asker.close()
        assert not asker._under_way

    live(life, factory)


def test_the_asker_closes_when_what_waited_behind_a_pipeline_has_been_answered() -> None:
    """What was asked while as many pipelines as may be were on their way is sent, and waited for as well."""

    async def life() -> None:
        asker = Asker(Prompt(), 1)  # type: ignore[arg-type]
        loop = asyncio.get_running_loop()
        first = loop.create_task(asker.ask(("PING",)))
        await first
        behind = loop.create_task(asker.ask(("PING",)))
        await asyncio.sleep(0)
        await asker.close()
        assert await behind == [b"here"]

    live(life)


@pytest.mark.parametrize("factory", FACTORIES)
def test_writes_are_sent_after_a_pipeline_that_failed_at_once(factory: Any) -> None:
    """Every turn hears that its writes were not kept, also where the sender was done before it was handed out."""

    async def life() -> None:
        ledger = ledger_over(Away())
        for _ in range(3):
            with pytest.raises(ServiceUnavailable):
                await asyncio.wait_for(commit(ledger), LIMIT_S / 3)
        await ledger.drained()

    live(life, factory)


def test_nothing_is_on_its_way_where_the_sender_was_cancelled_before_it_began() -> None:
    """An event loop that is being closed cancels all tasks; who drains then must not wait for ever."""

    async def life() -> None:
        ledger = ledger_over(Away())
        answer = commit(ledger)
        assert ledger._sender is not None
        ledger._sender.cancel()
        await ledger.drained()
        answer.cancel()

    live(life)
