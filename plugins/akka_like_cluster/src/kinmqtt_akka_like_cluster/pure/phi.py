"""Suspicion by phi: how unlikely a peer's silence is, given the intervals between its earlier answers.

After N. Hayashibara, X. Défago, R. Yared, T. Katayama: The phi accrual failure detector (2004), with the changes that
Akka made for production: an acceptable pause, a floor on the deviation, and an estimate before the first answers.
"""

from __future__ import annotations

from collections import deque
from math import erfc, log10, sqrt
from statistics import NormalDist
from typing import Final

WINDOW: Final = 200
"""How many intervals are remembered: about three minutes with a heartbeat each second."""
HIGHEST_PHI: Final = 300.0
"""Where phi ends: a float can't represent a smaller probability."""

_TICKS_PER_S: Final = 1_000_000


def deviations(threshold: float) -> float:
    """Return by how many standard deviations a silence must exceed the mean for phi to be ``threshold``.

    Raises :class:`ValueError` for a threshold that is not above 0, or not below :data:`HIGHEST_PHI`.
    """
    if not 0 < threshold < HIGHEST_PHI:
        raise ValueError(f"threshold is {threshold}; it must be above 0 and below {HIGHEST_PHI:.0f}, 8 is usual")
    return -NormalDist().inv_cdf(10.0**-threshold)


class Intervals:
    """The last intervals between a peer's answers, in seconds, and what silence they let expect.

    It begins with two estimated intervals, a quarter below and above ``expected_s``, as the first answers say little.
    The standard deviation counts as a tenth of ``expected_s`` at least: a very regular peer would be suspected at the
    first delay. ``pause_s`` is a silence beyond the mean that is acceptable in any case.

    Sums are kept in whole microseconds, so they stay exact however long the peer lives.
    """

    __slots__ = ("_floor_s", "_pause_s", "_squares", "_total", "_window")

    def __init__(self, expected_s: float, pause_s: float) -> None:
        self._window: deque[int] = deque()
        self._total = 0
        self._squares = 0
        self._floor_s = expected_s / 10
        self._pause_s = pause_s
        self.add(expected_s * 0.75)
        self.add(expected_s * 1.25)

    def __len__(self) -> int:
        return len(self._window)

    def add(self, interval_s: float) -> None:
        """Remember an interval; the oldest is forgotten when there are more than :data:`WINDOW`."""
        ticks = max(0, round(interval_s * _TICKS_PER_S))
        if len(self._window) == WINDOW:
            oldest = self._window.popleft()
            self._total -= oldest
            self._squares -= oldest * oldest
        self._window.append(ticks)
        self._total += ticks
        self._squares += ticks * ticks

    @property
    def mean_s(self) -> float:
        """The mean interval, in seconds."""
        return self._total / (len(self._window) * _TICKS_PER_S)

    @property
    def deviation_s(self) -> float:
        """The standard deviation of the intervals in seconds, with its floor."""
        count = len(self._window)
        variance = (count * self._squares - self._total * self._total) / (count * count)
        return max(self._floor_s, sqrt(variance) / _TICKS_PER_S)

    def phi(self, silence_s: float) -> float:
        """Return the suspicion after ``silence_s`` seconds without an answer: from 0 to :data:`HIGHEST_PHI`.

        Phi is ``-log10(P)``, where P is the probability that the next answer takes longer still.
        """
        sigmas = (silence_s - self.mean_s - self._pause_s) / self.deviation_s
        probability = erfc(sigmas / sqrt(2)) / 2
        # The logarithm's negative would be -0.0 for a certainty, which people would see.
        return 0.0 - log10(max(probability, 10.0**-HIGHEST_PHI))

    def longest_silence_s(self, sigmas: float) -> float:
        """Return the silence in seconds from which on phi is at the threshold; ``sigmas`` are its deviations."""
        return self.mean_s + self._pause_s + sigmas * self.deviation_s
