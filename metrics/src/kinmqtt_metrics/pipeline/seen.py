"""Which records were read already, by their ``seq``: a few ranges for each life of a broker."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias

Life: TypeAlias = tuple[str, str]
"""Node and boot."""

Ranges: TypeAlias = list[tuple[int, int]]
"""First and last, rising, none touching the next."""

WORD: Final = 64
"""A word of a bitmap tells of so many ``seq``."""


def ranges_of(words: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges of words, each with its number; bit *n* of word *w* is ``seq`` ``64 w + n``. Words are signed."""
    found: Ranges = []
    for number, signed in sorted(words):
        bits = signed % (1 << WORD)
        base = number * WORD
        while bits:
            first = (bits & -bits).bit_length() - 1
            run = bits >> first
            length = (~run & (run + 1)).bit_length() - 1
            start = base + first
            if found and found[-1][1] + 1 == start:
                found[-1] = (found[-1][0], start + length - 1)
            else:
                found.append((start, start + length - 1))
            bits &= ~(((1 << length) - 1) << first)
    return found


def union(one: Ranges, other: Ranges) -> Ranges:
    """What is in either."""
    merged: Ranges = []
    for first, last in sorted(one + other):
        if merged and first <= merged[-1][1] + 1:
            merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
        else:
            merged.append((first, last))
    return merged


def missing(seen: Ranges) -> Ranges:
    """What lies between, from 1 on: ``seq`` has no gaps. What follows the last one nobody knows."""
    between = []
    before = 0
    for first, last in seen:
        if first > before + 1:
            between.append((before + 1, first - 1))
        before = last
    return between


def common(one: Ranges, other: Ranges) -> Ranges:
    """What is in both."""
    both: Ranges = []
    i = j = 0
    while i < len(one) and j < len(other):
        first, last = max(one[i][0], other[j][0]), min(one[i][1], other[j][1])
        if first <= last:
            both.append((first, last))
        if one[i][1] < other[j][1]:
            i += 1
        else:
            j += 1
    return both
