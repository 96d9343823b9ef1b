"""Limits the rate of log lines: frequent events are logged now and then, with their number."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock


class Pace:
    """Lets one event through in a number of seconds, and counts the others.

    ::

        held_back = self._pace.due()
        if held_back is not None:
            context.log.warn("the line is full{others}", others=and_others(held_back))
    """

    __slots__ = ("_clock", "_every_s", "_held_back", "_next")

    def __init__(self, clock: Clock, every_s: float) -> None:
        """Let one event through in ``every_s`` seconds, by the clock's ``monotonic``; the first at once."""
        self._clock = clock
        self._every_s = every_s
        self._next: float | None = None
        self._held_back = 0

    def due(self) -> int | None:
        """Count an event. Return ``None`` to suppress it, else the number of suppressed events since the last one."""
        now = self._clock.monotonic()
        if self._next is not None and now < self._next:
            self._held_back += 1
            return None
        self._next = now + self._every_s
        held_back, self._held_back = self._held_back, 0
        return held_back


def and_others(count: int) -> str:
    """Return how a log line ends that stands for ``count`` more events, which were suppressed; empty for none."""
    return f" ({count} more since the last such line)" if count else ""
