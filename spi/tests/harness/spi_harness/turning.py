"""Runs coroutines on a turnable clock, for logs whose handlers answer them: no event loop, no Twisted."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator
from typing import Any

from kinmqtt_spi.memory.plugin import TurnableClock


class Gate(Awaitable[None]):
    """Something to wait for until it is opened."""

    def __init__(self) -> None:
        self._open = False
        self._waiting: list[Callable[[], object]] = []

    def done(self) -> bool:
        """Whether it is open."""
        return self._open

    def go(self) -> None:
        """Open it."""
        self._open = True
        for each in self._waiting:
            each()

    def when_open(self, call: Callable[[], object]) -> None:
        """Make a call when it is opened."""
        self._waiting.append(call)

    def __await__(self) -> Generator[Any, None, None]:
        while not self._open:
            yield self


class ClockRunner:
    """The runner of a log: goes on with a coroutine in a later turn of the clock."""

    def __init__(self, clock: TurnableClock) -> None:
        self._clock = clock

    def __call__(
        self, awaitable: Awaitable[None], done: Callable[[], object], failed: Callable[[BaseException], object]
    ) -> Awaitable[None]:
        async def wait() -> None:
            await awaitable

        ended = Gate()
        self._go_on(wait(), done, failed, ended)
        return ended

    def _go_on(
        self,
        coroutine: Coroutine[Any, Any, None],
        done: Callable[[], object],
        failed: Callable[[BaseException], object],
        ended: Gate,
    ) -> None:
        try:
            gate = coroutine.send(None)
        except StopIteration:
            ended.go()
            done()
        except Exception as error:
            ended.go()
            failed(error)
        else:
            gate.when_open(lambda: self._clock.later(0.0, lambda: self._go_on(coroutine, done, failed, ended)))
