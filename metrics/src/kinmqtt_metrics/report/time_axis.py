"""The time axis of a report: the span and its steps of equal length."""

from __future__ import annotations

from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

Line: TypeAlias = npt.NDArray[np.float64]
"""One value for each step; NaN where there is no data."""

MOST_STEPS: Final = 300
"""A plot of this width can't show more."""

_NICE_S: Final = (1, 2, 5, 10, 15, 20, 30, 60, 120, 300, 600, 900, 1200, 1800, 3600, 7200, 10800, 21600, 43200, 86400)


@frozen(slots=True)
class Span:
    """Start and end of the report, in seconds since the epoch; the end is not part of it."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """Returns the length in seconds."""
        return self.end_s - self.start_s


@frozen(slots=True, eq=False)
class Axis:
    """The span, divided into steps of equal length."""

    span: Span
    step_s: float
    first_s: float
    """Start of the first step: at or before the start of the span."""
    steps: int

    @classmethod
    def of(cls, span: Span, least_s: float, most_steps: int = MOST_STEPS) -> Axis:
        """Commits that are a multiple of ``least_s``, and round where that goes."""
        wanted = max(least_s, span.length_s / most_steps)
        nice = next((s for s in _NICE_S if s >= wanted and s % least_s == 0), 0)
        step_s = float(nice or least_s * -(-wanted // least_s))
        first_s = span.start_s // step_s * step_s
        return cls(span, step_s, first_s, max(1, int(-((first_s - span.end_s) // step_s))))

    @property
    def begins_s(self) -> Line:
        """Returns the start of each step, in seconds."""
        line: Line = self.first_s + self.step_s * np.arange(self.steps, dtype=np.float64)
        return line

    @property
    def middles_s(self) -> Line:
        """Returns the middle of the part of each step that is in the span."""
        low = np.maximum(self.begins_s, self.span.start_s)
        high = np.minimum(self.begins_s + self.step_s, self.span.end_s)
        line: Line = (low + high) / 2
        return line

    @property
    def lengths_s(self) -> Line:
        """Returns how many seconds of each step are in the span."""
        low = np.maximum(self.begins_s, self.span.start_s)
        high = np.minimum(self.begins_s + self.step_s, self.span.end_s)
        line: Line = np.maximum(high - low, 1e-9)
        return line

    def empty(self) -> Line:
        """Returns a line without data."""
        return np.full(self.steps, np.nan)
