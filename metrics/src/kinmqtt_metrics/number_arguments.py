"""Numbers that commands are told, with the bounds in which they have sense."""

from __future__ import annotations

import argparse
import math
from typing import Final

from attrs import frozen

WEEK_S: Final = 604_800
YEAR_S: Final = 31_536_000


@frozen(slots=True)
class Number:
    """What a number may be; as the ``type`` of an option of argparse it reads one."""

    least: float
    most: float
    """``inf``: there is no upper bound, and ``inf`` itself is a value."""
    unit: str = ""
    whole: bool = False
    above: bool = False
    """Whether ``least`` itself is too little."""

    def __str__(self) -> str:
        """In words, for a help text: ``a whole number from 1 to 604800, in seconds``."""
        kind = "a whole number" if self.whole else "a number"
        low = f"{'above' if self.above else 'from'} {self.least:.15g}"
        high = " to inf" if math.isinf(self.most) else f" to {self.most:.15g}"
        return f"{kind} {low}{high}{f', in {self.unit}' if self.unit else ''}"

    def problem(self, value: object) -> str | None:
        """What is wrong with a value, as the end of a sentence; nothing where it is fine."""
        fine = isinstance(value, int if self.whole else int | float) and not isinstance(value, bool)
        if fine:
            assert isinstance(value, int | float)
            fine = self.least < value <= self.most if self.above else self.least <= value <= self.most
        return None if fine else f"must be {self}, and is {str(value)[:60]}"

    def __call__(self, text: str) -> float:
        """Raises ``argparse.ArgumentTypeError``."""
        value: object = text
        try:
            value = int(text) if self.whole else float(text)
        except ValueError:
            pass
        problem = self.problem(value)
        if problem is not None:
            raise argparse.ArgumentTypeError(problem)
        assert isinstance(value, int | float)
        return value
