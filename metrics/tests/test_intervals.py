"""Ranges of ``seq``: the same as sets, in less room."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.intervals import Intervals, Numbers

few = st.integers(1, 40)
numbers = st.sets(st.integers(1, 400) | st.integers(1, 2**62))


def array(of: Iterable[int]) -> Numbers:
    """As Arrow hands them over."""
    return np.array(list(of), np.int64)


def members(ranges: Intervals) -> set[int]:
    """What ranges hold, where that is few."""
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(st.lists(st.integers(1, 400) | st.integers(1, 2**62)))
def test_ranges_hold_the_numbers(of: list[int]) -> None:
    """No record is taken for read that was not, or the other way round; ranges rise and do not touch."""
    ranges = Intervals.of(array(of))

    assert members(ranges) == set(of)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges))


@given(numbers, numbers)
def test_two_sets_of_ranges_are_united_and_compared(one: set[int], other: set[int]) -> None:
    """A segment that comes again is told from a new one, also where they overlap in part."""
    a, b = Intervals.of(array(one)), Intervals.of(array(other))

    assert members(a & b) == one & other
    assert members(a - b) == one - other
    assert a | b == Intervals.of(array(one | other))


def test_a_long_life_is_one_range() -> None:
    """What is remembered of a broker does not grow with what it wrote."""
    assert list(Intervals.of(np.arange(1, 3_000_000))) == [(1, 2_999_999)]


@given(st.lists(few), st.lists(few))
def test_numbers_are_added_one_by_one(ours: list[int], others: list[int]) -> None:
    """Intervals hold what was added and no more, as few of them as there can be, and differ as sets do."""
    first, second = Intervals(), Intervals()
    for number in ours:
        first.add(number)
    for number in others:
        second.add(number)

    pairs = list(first)
    assert {number for number in range(50) if number in first} == set(ours)
    assert all(low <= high for low, high in pairs)
    assert all(high + 1 < low for (_, high), (low, _) in itertools.pairwise(pairs))
    assert list((first - second).numbers()) == sorted(set(ours) - set(others))
    assert not ours or str(Intervals.parse(str(first))) == str(first)
