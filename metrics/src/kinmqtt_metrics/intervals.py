"""Sets of whole numbers as intervals: numbers of segments and of records, of which few are missing."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import numpy as np

Pair: TypeAlias = tuple[int, int]
"""First and last number of an interval."""

Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]


class Intervals:
    """A set of numbers as ascending intervals that neither overlap nor touch. Iterating gives their pairs."""

    __slots__ = ("_firsts", "_lasts")

    def __init__(self, pairs: Iterable[Pair] = ()) -> None:
        """``pairs`` may be in any order and overlap."""
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in sorted(pairs):
            self._append(first, last)

    def _append(self, first: int, last: int) -> None:
        """Add an interval that begins at or after the last one's begin."""
        if self._lasts and first <= self._lasts[-1] + 1:
            self._lasts[-1] = max(last, self._lasts[-1])
        else:
            self._firsts.append(first)
            self._lasts.append(last)

    @classmethod
    def of(cls, numbers: Numbers) -> Intervals:
        """Returns the set of these numbers, which may be in any order and repeat."""
        found = cls()
        if not len(numbers):
            return found
        if not (np.diff(numbers) > 0).all():
            numbers = np.unique(numbers)
        ends = np.flatnonzero(np.diff(numbers) != 1)
        found._firsts = numbers[np.concatenate([[0], ends + 1])].tolist()
        found._lasts = numbers[np.concatenate([ends, [len(numbers) - 1]])].tolist()
        return found

    @classmethod
    def parse(cls, text: str) -> Intervals:
        """Returns the set that ``str`` wrote. Raises ``ValueError`` for any other text."""
        found = cls()
        end = -1
        for part in text.split(","):
            first, dash, last = part.partition("-")
            low = int(first)
            high = int(last) if dash else low
            if low <= end + 1 or high < low:
                raise ValueError(f"{text!r} is not an ascending list of ranges")
            found._firsts.append(low)
            found._lasts.append(high)
            end = high
        return found

    def __str__(self) -> str:
        return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in self)

    def __repr__(self) -> str:
        return f"Intervals({list(self)})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Intervals) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return bool(self._firsts)

    def __iter__(self) -> Iterator[Pair]:
        return zip(self._firsts, self._lasts, strict=True)

    def __contains__(self, number: int) -> bool:
        at = bisect_right(self._firsts, number) - 1
        return at >= 0 and number <= self._lasts[at]

    @property
    def count(self) -> int:
        """Returns how many numbers are in the set."""
        return sum(self._lasts) - sum(self._firsts) + len(self._firsts)

    @property
    def highest(self) -> int:
        """Returns the highest number; 0 if there is none."""
        return self._lasts[-1] if self._lasts else 0

    def copy(self) -> Intervals:
        """Returns a set of its own with the same numbers."""
        found = Intervals()
        found._firsts, found._lasts = self._firsts.copy(), self._lasts.copy()
        return found

    def add(self, number: int) -> bool:
        """Add a number. Returns whether it is new."""
        after = bisect_right(self._firsts, number)
        at = after - 1
        if at >= 0 and number <= self._lasts[at]:
            return False
        joins_before = at >= 0 and self._lasts[at] == number - 1
        joins_after = after < len(self._firsts) and self._firsts[after] == number + 1
        if joins_before and joins_after:
            self._lasts[at] = self._lasts.pop(after)
            self._firsts.pop(after)
        elif joins_before:
            self._lasts[at] = number
        elif joins_after:
            self._firsts[after] = number
        else:
            self._firsts.insert(after, number)
            self._lasts.insert(after, number)
        return True

    def extend(self, numbers: Numbers) -> None:
        """Add ascending numbers, all of them above the highest."""
        for first, last in Intervals.of(numbers):
            self._append(first, last)

    def __or__(self, other: Intervals) -> Intervals:
        return Intervals([*self, *other])

    def __and__(self, other: Intervals) -> Intervals:
        both = Intervals()
        i = j = 0
        while i < len(self._firsts) and j < len(other._firsts):
            first, last = max(self._firsts[i], other._firsts[j]), min(self._lasts[i], other._lasts[j])
            if first <= last:
                both._firsts.append(first)
                both._lasts.append(last)
            if self._lasts[i] < other._lasts[j]:
                i += 1
            else:
                j += 1
        return both

    def __sub__(self, other: Intervals) -> Intervals:
        rest = Intervals()
        at = 0
        for first, last in self:
            while at < len(other._lasts) and other._lasts[at] < first:
                at += 1
            beyond = at
            while beyond < len(other._firsts) and other._firsts[beyond] <= last:
                if first < other._firsts[beyond]:
                    rest._append(first, other._firsts[beyond] - 1)
                first = other._lasts[beyond] + 1
                beyond += 1
            if first <= last:
                rest._append(first, last)
        return rest

    def numbers(self) -> Iterator[int]:
        """Yields the numbers, ascending."""
        for first, last in self:
            yield from range(first, last + 1)

    def gaps(self) -> Intervals:
        """Returns the numbers from 1 to the highest that are not in the set."""
        return Intervals([(1, self.highest)]) - self if self else Intervals()
