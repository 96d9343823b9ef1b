"""An event loop of asyncio that never waits: its time jumps to the next timer."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class _Jump(selectors.SelectSelector):
    """Finds nothing to read; time passes instead."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("everything waits, and no timer is set")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """The loop. Its resolution is a microsecond, so that timers for one moment run together."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return self._jump.now


def run_virtually(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end; tasks that are left are cancelled."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)
