"""Runs sinks and sources for their suites, on a clock that the suites advance."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from random import Random
from time import monotonic
from typing import Any, Final, Literal

from kinmqtt_spi.bridging.environment import Environment
from kinmqtt_spi.bridging.parking import Parking
from kinmqtt_spi.bridging.runner import SinkRunner
from kinmqtt_spi.bridging.sources import SourceRunner
from kinmqtt_spi.memory.bridge import MemoryOutbox
from kinmqtt_spi.memory.plugin import RecordingLog, TurnableClock
from kinmqtt_spi.memory.polling import Pending, PollingRun
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.bridge import SendSettings, Sink, SinkPlan, SinkState, Source
from kinmqtt_spi.services.outbox import AtMostOnce, OutboxSettings
from kinmqtt_spi.testing.build import message
from kinmqtt_spi.testing.driving import LIMIT_S, resolved
from kinmqtt_spi.values import Message, Publisher

TURNS: Final = 2000
"""How many turns of 0.1 s on the clock a suite waits for something."""

DEADLINE_S: Final = 10.0
"""The deadline of a stop, in seconds on the clock."""


class AsyncioRun:
    """Drives awaitables as tasks of a loop of its own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._is_closing = False

    def __call__(
        self, awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
    ) -> asyncio.Future[Any]:
        # Not in a coroutine of our own: one that is cancelled before it begins would leave the awaitable unawaited.
        future: asyncio.Future[Any] = asyncio.ensure_future(awaitable, loop=self.loop)

        def ended(future: asyncio.Future[Any]) -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            if self._is_closing:
                return
            if error is None:
                done(future.result())
            else:
                failed(error)

        future.add_done_callback(ended)
        return future

    def turn(self, clock: TurnableClock, seconds: float) -> None:
        """Let time pass within the loop."""

        async def pass_time() -> None:
            clock.advance(seconds)
            await asyncio.sleep(0.001)
            clock.advance()

        self.loop.run_until_complete(pass_time())

    def close(self, sinks: Iterable[Sink] = ()) -> None:
        """Cancel what has not ended, close the sinks, which may have connections, and close the loop."""

        async def end() -> None:
            tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for sink in sinks:
                async with asyncio.timeout(LIMIT_S):
                    await resolved(sink.close())

        self._is_closing = True
        self.loop.run_until_complete(end())
        self.loop.close()


class BridgeRuns:
    """What a suite runs sinks and sources with."""

    def __init__(self, clock: TurnableClock, reactor: Literal["asyncio"] | None) -> None:
        self.clock = clock
        self.log = RecordingLog()
        self.registry = MetricRegistry()
        self.sinks: list[Sink] = []
        """Those that were run, and are closed in the end."""
        self._on_asyncio = AsyncioRun() if reactor == "asyncio" else None
        self._polling = PollingRun()
        run = self._polling if self._on_asyncio is None else self._on_asyncio
        self.environment = Environment(clock, run, Random(1), self.log, self.registry)

    def turn(self, seconds: float = 0.0) -> None:
        """Let ``seconds`` pass on the clock, and everything go on that can."""
        if self._on_asyncio is not None:
            self._on_asyncio.turn(self.clock, seconds)
            return
        self.clock.advance(seconds)
        for _ in range(3):
            self._polling.turn()
            self.clock.advance()

    def wait(self, condition: Callable[[], object], what: str) -> None:
        """Turn until something is so; fails if it never is."""
        until = monotonic() + LIMIT_S
        for _ in range(TURNS):
            self.turn(0.1)
            if condition():
                return
            if self._on_asyncio is not None and monotonic() > until:
                break
        raise AssertionError(f"never: {what}; the log has {self.log.texts()[-3:]}")

    def close(self) -> None:
        """Cancel what has not ended."""
        self._polling.close()
        if self._on_asyncio is not None:
            self._on_asyncio.close(self.sinks)


class SinkRun:
    """One sink with its runner and outboxes."""

    def __init__(self, runs: BridgeRuns, sink: Sink, **sending: Any) -> None:
        self.runs = runs
        runs.sinks.append(sink)
        self.answers: list[Any] = []
        """What the sink has answered to each batch."""
        self.states: list[SinkState] = []
        settings = OutboxSettings(qos_0=AtMostOnce.STORE)
        self.outbox = MemoryOutbox("sink", settings, runs.clock)
        self.parked = MemoryOutbox("sink.parked", settings, runs.clock)
        self.plan = SinkPlan(sink, ("#",), sending=SendSettings(**{"linger_s": 0.0, **sending}))
        self.runner = SinkRunner(
            "suite:sink",
            self.plan,
            self.outbox,
            self.parking(),
            runs.environment,
            lambda state, why: self.states.append(state),
        )
        self.runner.start()

    def parking(self) -> Parking:
        """Return where poison goes."""
        return Parking(self.parked, self.parked.after_commit)

    def put(self, messages: Iterable[Message]) -> None:
        """Put messages in, with QoS 1."""
        for each in messages:
            self.outbox.put(each)

    def left(self) -> int:
        """Return how many messages are not acknowledged."""
        return len(self.outbox.stored) + len(self.outbox._new)

    def delivered(self) -> None:
        """Wait until everything is acknowledged."""
        self.runs.wait(lambda: not self.left(), "every message is acknowledged")

    def stop(self) -> None:
        """Stop the runner, and wait until it has stopped."""
        stopped: list[bool] = []
        self.runner.stop(DEADLINE_S, lambda: stopped.append(True))
        self.runs.wait(lambda: stopped, "the sink has stopped")


class SourceRun:
    """One source with its runner, and what it has published."""

    def __init__(
        self, runs: BridgeRuns, source: Source, *, holds: bool = False, errors: Iterable[Exception] = ()
    ) -> None:
        self.runs = runs
        self.published: list[Message] = []
        self.errors = list(errors)
        """Raised by the next publications, one each."""
        self.held: list[Pending[None]] = []
        self.holds = holds
        """Whether publications complete only when :meth:`release` is called."""
        self.runner = SourceRunner("suite:source", source, self._publish, runs.environment)
        self.runner.start()

    async def _publish(self, messages: Sequence[Message]) -> None:
        if self.holds:
            pending: Pending[None] = Pending()
            self.held.append(pending)
            while not pending.done():
                await self._turn(pending)
        if self.errors:
            raise self.errors.pop(0)
        self.published += messages

    async def _turn(self, pending: Pending[None]) -> None:
        if self.runs._on_asyncio is None:
            await pending
        else:
            await asyncio.sleep(0)

    def release(self) -> None:
        """Complete every publication that is held."""
        self.holds = False
        for pending in self.held:
            pending.complete()

    def payloads(self) -> list[bytes]:
        """Return the payloads that were published."""
        return [each.payload for each in self.published]

    def stop(self) -> None:
        """Cancel the source, and wait until it has ended."""
        stopped: list[bool] = []
        self.runner.stop(DEADLINE_S, lambda: stopped.append(True))
        self.runs.wait(lambda: stopped, "the source has ended")


def numbered(
    numbers: Iterable[int], topic: str = "suite/topic", client: str = "client", **fields: Any
) -> list[Message]:
    """Make messages whose payloads are numbers."""
    common: dict[str, Any] = {"qos": 1, "publisher": Publisher(client)}
    return [message(topic, **{"payload": b"%d" % each, "number": each, **common, **fields}) for each in numbers]
