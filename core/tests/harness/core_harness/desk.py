"""Calls of plain functions, for the tests of what combines their answers: the dispatchers and the mailboxes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kinmqtt.hooks.calls import Call, CallFactory
from kinmqtt.hooks.manager import Implementation
from kinmqtt.hooks.notify import Mailbox, NoticeLimit, Notify
from kinmqtt_spi.markers import HookTraits, Kind
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.metrics import MetricRegistry


class Stopwatch:
    """What measures how long code runs, for tests: it goes on when the code says so."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds

    def run(self, seconds: float) -> None:
        """Code runs for as long."""
        self.seconds += seconds


class Desk:
    """Makes calls of plain functions, and tells what was counted under their plugins' names."""

    def __init__(self) -> None:
        self.clock = TurnableClock()
        self.metrics = MetricRegistry()
        self.stopwatch = Stopwatch()
        self.limit = NoticeLimit(30.0)
        self.boxes: dict[str, Mailbox] = {}
        self.factory = CallFactory(self.clock, self.metrics, timer=self.stopwatch)

    def calls(
        self,
        *functions: Callable[..., Any],
        synchronous: bool = False,
        limit_s: float | None = 10.0,
        hook: str = "hook",
        closed: bool = False,
    ) -> tuple[Call, ...]:
        """One call for each function; their plugins are named p0, p1 and so on."""
        traits = HookTraits(Kind.DECIDE, synchronous, limit_s)
        found = [Implementation(f"p{n}", function, closed=closed) for n, function in enumerate(functions)]
        return self.factory.bind(hook, traits, found)

    def notify(self, *implementations: Implementation, hook: str = "notice") -> Notify[Any]:
        """A notice with mailboxes by plugin."""
        calls = self.factory.bind(hook, HookTraits(Kind.NOTIFY), implementations)
        return Notify(calls, self._box, self.metrics)

    def _box(self, plugin: str) -> Mailbox:
        return self.boxes.setdefault(plugin, Mailbox(self.clock, self.limit))

    def count(self, metric: str, plugin: str, hook: str = "hook") -> int:
        """A counter of one plugin and hook."""
        unit = {"plugin.busy": "microseconds"}.get(metric, "notices" if "notices" in metric else "calls")
        return self.metrics.counter(metric, unit, {"plugin": plugin, "hook": hook}).value


def answers(value: Any) -> Callable[..., Any]:
    """A function with one answer."""
    return lambda *_: value


def raises(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


async def later(value: Any) -> Any:
    """A coroutine's answer."""
    return value


async def raises_later(*_: Any) -> Any:
    """What a broken plugin does that answers with a coroutine."""
    raise ValueError("broken")


def outcome(answer: Any) -> Any:
    """What a Deferred has fired with."""
    fired: list[Any] = []
    answer.addBoth(fired.append)
    return fired[0] if fired else None
