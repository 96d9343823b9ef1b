"""Sizes and durations: strings for a number of bytes or seconds."""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Final

from attrs import frozen

# Long numbers are refused here rather than turned into integers of unbounded size.
_AMOUNT: Final = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,9})?) ?([A-Za-z]+)")


@frozen(slots=True)
class Unit:
    """A base unit, and the suffixes that strings may carry instead."""

    plural: str
    noun: str
    example: str
    factors: Mapping[str, Fraction]

    def amount(self, text: str) -> Fraction | None:
        """Return the base units in a string such as ``"8 MiB"``; ``None`` if it is malformed."""
        match = _AMOUNT.fullmatch(text)
        if match is None or match[2] not in self.factors:
            return None
        return Fraction(match[1]) * self.factors[match[2]]

    @property
    def suffixes(self) -> str:
        """Return the suffixes in words."""
        *others, last = self.factors
        return f"{', '.join(others)} and {last}"


# MB and its like are left out on purpose: half of the world means 1000² by it, the other half 1024².
UNITS: Final = {
    "bytes": Unit(
        "bytes",
        "a size",
        "8 MiB",
        {name: Fraction(1024**power) for power, name in enumerate(["B", "KiB", "MiB", "GiB", "TiB"])},
    ),
    "s": Unit(
        "seconds",
        "a duration",
        "30 s",
        {
            "ms": Fraction(1, 1000),
            "s": Fraction(1),
            "min": Fraction(60),
            "h": Fraction(3600),
            "d": Fraction(86400),
        },
    ),
}
"""By the name that a field's ``unit`` has."""
