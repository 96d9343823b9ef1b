"""Limits log lines under load: a number of each kind per second, and one line with the count of the others."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt_spi.services.plugin import Clock, Timer

log = Logger("kinmqtt.connection")

LINES_PER_S: Final = 50
"""The most lines of each kind. A line takes some 50 µs, and all of a second may come in one reactor turn."""

SUMMED_UP_EVERY_S: Final = 1.0


class LogLines:
    """Decides which lines may be written, and writes how many were not."""

    __slots__ = ("_clock", "_seen", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, int] = {}
        """The number of lines of each kind requested in the current second."""
        self._timer: Timer | None = None

    def may(self, kind: str) -> bool:
        """Return whether a line of a kind (``connected``, ``refused`` …) may be written; otherwise it is counted."""
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._timer is None:
            self._timer = self._clock.later(SUMMED_UP_EVERY_S, self.sum_up)
        return seen <= LINES_PER_S

    def sum_up(self) -> None:
        """Write how many lines were left out, and reset the counters."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        seen, self._seen = self._seen, {}
        left_out = {kind: count - LINES_PER_S for kind, count in seen.items() if count > LINES_PER_S}
        if left_out:
            log.info(
                "and {sums} within {seconds:g} s, without a line each",
                sums=", ".join(f"{count} more {kind}" for kind, count in left_out.items()),
                seconds=SUMMED_UP_EVERY_S,
                left_out=left_out,
            )
