"""The sink and the source keep the contracts of sinks and sources, over a real RabbitMQ behind a proxy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest

from bridge_rabbitmq_harness.making import Made, sink, user
from bridge_rabbitmq_harness.proxy import Proxy
from kinmqtt_bridge_rabbitmq.sink import RabbitMQSink
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.testing.bridge import SinkCase, SinkContract, SourceCase, SourceContract
from kinmqtt_spi.testing.bridge_runs import BridgeRuns
from kinmqtt_spi.testing.build import message
from root_harness.rabbitmq import RabbitMQ

NAMES = count(1)


class RealRuns(BridgeRuns):
    """Lets RabbitMQ have a tenth of the time that passes on the clock: the suites' limits are seconds there."""

    def turn(self, seconds: float = 0.0) -> None:
        super().turn(seconds)
        assert self._on_asyncio is not None
        self._on_asyncio.loop.run_until_complete(asyncio.sleep(min(seconds / 10, 0.05)))

    def end(self, sink: RabbitMQSink) -> None:
        """Cancel what is under way, and disconnect a sink that the suite has left open."""

        async def end() -> None:
            others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for each in others:
                each.cancel()
            await asyncio.gather(*others, return_exceptions=True)
            await sink.close()
            await asyncio.sleep(0.01)

        assert self._on_asyncio is not None
        self._on_asyncio._is_closing = True
        self._on_asyncio.loop.run_until_complete(end())


@pytest.fixture
def real_runs(clock: TurnableClock) -> Iterator[RealRuns]:
    """What sinks and sources are run with."""
    made = RealRuns(clock, "asyncio")
    yield made
    made.close()


@pytest.fixture
def proxy(rabbitmq: RabbitMQ) -> Iterator[Proxy]:
    """What stands between the bridge and RabbitMQ."""
    made = Proxy(rabbitmq.port)
    yield made
    made.end()


class TestSink(SinkContract):
    """A sink with a topic exchange and one queue."""

    reactor = "asyncio"
    can_fail = can_refuse = can_hang = has_poison = True

    @pytest.fixture
    def runs(self, real_runs: RealRuns) -> BridgeRuns:
        return real_runs

    @pytest.fixture
    def sink(self, real_runs: RealRuns, rabbitmq: RabbitMQ, proxy: Proxy, tmp_path: Path) -> Iterator[SinkCase]:
        rabbitmq.add_user("ada", "secret")
        name = f"contract-{next(NAMES)}"
        rabbitmq.declare(name, name, "suite.#", "Größe.#")
        settings = user(proxy.address, tmp_path, "ada", "secret", timeout_s=1.0)
        got: list[bytes] = []

        def received() -> Sequence[bytes]:
            got.extend(taken.body for taken in rabbitmq.take(name))
            return got

        self.rabbitmq, self.proxy = rabbitmq, proxy
        poison = message("nowhere", payload=b"poison", qos=1, number=99)
        made = sink(settings, exchange=name)
        yield SinkCase(made, received, poison)
        real_runs.end(made)

    def failing(self, case: SinkCase) -> Callable[[], object]:
        self.proxy.away()
        return self.proxy.repair

    def hanging(self, case: SinkCase) -> Callable[[], object]:
        self.proxy.hang()
        return self.proxy.repair

    def refusing(self, case: SinkCase) -> Callable[[], object]:
        self.rabbitmq.add_user("ada", "another")
        return lambda: self.rabbitmq.add_user("ada", "secret")


class TestSource(SourceContract):
    """A source with one queue, which counts what is not acknowledged."""

    reactor = "asyncio"
    can_fail = True

    @pytest.fixture
    def runs(self, real_runs: RealRuns) -> BridgeRuns:
        return real_runs

    @pytest.fixture
    def source(self, clock: TurnableClock, rabbitmq: RabbitMQ, proxy: Proxy, tmp_path: Path) -> SourceCase:
        rabbitmq.add_user("ada", "secret")
        queue = rabbitmq.declare(f"contract-{next(NAMES)}")
        settings = user(proxy.address, tmp_path, "ada", "secret", timeout_s=1.0)
        offered: list[bytes] = []

        def offer(payloads: Sequence[bytes]) -> None:
            rabbitmq.put(queue, list(payloads))
            offered.extend(payloads)

        self.proxy = proxy
        return SourceCase(
            Made().source(settings, queue), offer, lambda: offered[: len(offered) - rabbitmq.left(queue)]
        )

    def failing(self, case: SourceCase) -> Callable[[], object]:
        self.proxy.away()
        return self.proxy.repair
