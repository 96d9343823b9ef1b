"""Pauses after failures, and the circuit breaker."""

from __future__ import annotations

from random import Random
from typing import Final

JITTER: Final = 0.2
"""The share of a pause that chance decides, so that several brokers do not come back at the same moment."""

_DOUBLINGS: Final = 30
"""More doublings change nothing: the longest pause is reached, and the number would overflow."""


class Pauses:
    """Pauses that double from ``first_s`` to ``longest_s`` seconds; the last ``JITTER`` of each is random."""

    __slots__ = ("_first_s", "_longest_s", "_random", "failures")

    def __init__(self, first_s: float, longest_s: float, random: Random) -> None:
        self._first_s = first_s
        self._longest_s = longest_s
        self._random = random
        self.failures = 0
        """The number of pauses since the last success."""

    def next_s(self) -> float:
        """Return the next pause in seconds."""
        pause_s = min(self._first_s * 2.0 ** min(self.failures, _DOUBLINGS), self._longest_s)
        self.failures += 1
        return pause_s * (1.0 - JITTER * self._random.random())

    def reset(self) -> None:
        """Begin again with the first pause."""
        self.failures = 0


class Breaker:
    """Counts failures in a row. After ``break_after`` of them one call at a time is tried, until one succeeds."""

    __slots__ = ("_break_after", "failures")

    def __init__(self, break_after: int) -> None:
        self._break_after = break_after
        self.failures = 0

    def allows(self, under_way: int) -> bool:
        """Tell whether another call may begin while ``under_way`` of them are under way."""
        return under_way == 0 or self.failures < self._break_after

    def failed(self) -> None:
        """Count a failure."""
        self.failures += 1

    def trip(self) -> None:
        """Open the circuit, however few failures there were."""
        self.failures = max(self.failures, self._break_after)

    def succeeded(self) -> None:
        """Close the circuit."""
        self.failures = 0
