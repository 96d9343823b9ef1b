"""Keeps the log readable, and cheap, in a storm: some lines of a kind a second, and one that sums up the rest."""

from __future__ import annotations

from typing import Final

from twisted.logger import Logger

from kinmqtt_spi.services.plugin import Clock, Timer

log = Logger("kinmqtt.connection")

LINES_PER_S: Final = 50
"""Of each kind. A line takes some 50 µs, and all of a second may come in one turn of the event loop."""

SUMMED_UP_EVERY_S: Final = 1.0


class LogLines:
    """Says which lines may be written one by one, and writes how many were not."""

    __slots__ = ("_clock", "_seen", "_timer")

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: dict[str, int] = {}
        """How many lines of each kind were asked for in the second under way."""
        self._timer: Timer | None = None

    def may(self, kind: str) -> bool:
        """Whether a line of a kind (``connected``, ``refused`` …) may be written; one that may not is counted."""
        seen = self._seen[kind] = self._seen.get(kind, 0) + 1
        if self._timer is None:
            self._timer = self._clock.later(SUMMED_UP_EVERY_S, self.sum_up)
        return seen <= LINES_PER_S

    def sum_up(self) -> None:
        """Write how many lines were left out, and begin anew."""
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
