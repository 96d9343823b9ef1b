"""Calls that wait until no node is behind, or until their limit."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from attrs import define

from kinmqtt_spi.mesh.results import Result
from kinmqtt_spi.services.plugin import Clock, Timer
from kinmqtt_spi.values import Maybe, NodeIdentity

T = TypeVar("T")

Laggards = Callable[[], Sequence[NodeIdentity]]


@define(slots=True, eq=False)
class _Wait:
    laggards: Laggards
    complete: Callable[[Sequence[NodeIdentity]], Any]
    result: Result
    timer: Timer | None = None


class Waits:
    """The calls of a backend that wait for other nodes."""

    __slots__ = ("_clock", "_new_result", "_waits")

    def __init__(self, clock: Clock, new_result: Callable[[], Result]) -> None:
        self._clock = clock
        self._new_result = new_result
        self._waits: list[_Wait] = []

    def until_none(
        self, laggards: Laggards, complete: Callable[[Sequence[NodeIdentity]], T], limit_s: float | None = None
    ) -> Maybe[T]:
        """Wait until ``laggards`` returns none, for at most ``limit_s`` seconds; returns what ``complete`` returns.

        ``complete`` gets the nodes that are still behind.
        """
        if not laggards():
            return complete(())
        wait = _Wait(laggards, complete, self._new_result())
        self._waits.append(wait)
        if limit_s is not None:
            wait.timer = self._clock.later(max(0.0, limit_s), lambda: self._end(wait, laggards()))
        return wait.result.awaitable

    def check(self) -> None:
        """Complete the calls for which no node is behind any more."""
        for wait in tuple(self._waits):
            if not wait.laggards():
                self._end(wait, ())

    def end(self) -> None:
        """Complete all calls."""
        for wait in tuple(self._waits):
            self._end(wait, wait.laggards())

    def _end(self, wait: _Wait, laggards: Sequence[NodeIdentity]) -> None:
        if wait not in self._waits:
            return
        self._waits.remove(wait)
        if wait.timer is not None:
            wait.timer.cancel()
        wait.result.set(wait.complete(laggards))
