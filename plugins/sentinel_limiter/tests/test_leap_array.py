"""The sliding window, beside a plain list of what was added when."""

from __future__ import annotations

from math import floor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_sentinel_limiter._leap_array import LeapArray


@given(
    sample_count=st.integers(1, 12),
    interval_s=st.sampled_from([0.5, 1.0, 10.0]),
    steps=st.lists(st.tuples(st.floats(0.0, 3.0), st.integers(0, 50)), max_size=60),
)
def test_the_window_is_a_list_of_timestamps(
    sample_count: int, interval_s: float, steps: list[tuple[float, int]]
) -> None:
    """Whatever is added when, the sum is that of the times within the window's buckets."""
    array = LeapArray(sample_count, interval_s)
    bucket_s = interval_s / sample_count
    added: list[tuple[int, int]] = []
    now = 0.0

    for pause_s, amount in steps:
        now += pause_s
        array.add(now, amount)
        added.append((floor(now / bucket_s), amount))
        newest = floor(now / bucket_s)

        assert array.total(now) == sum(amount for number, amount in added if number > newest - sample_count)


def test_what_is_older_than_the_window_is_gone() -> None:
    """A look at the window, long after the last addition, finds nothing, though nobody emptied the buckets."""
    array = LeapArray(2, 1.0)
    array.add(0.1, 7)

    assert array.total(0.9) == 7
    assert array.total(1.0) == 0
    assert array.total(1000.0) == 0


def test_fields_are_summed_side_by_side() -> None:
    """One window counts several things."""
    array = LeapArray(2, 1.0, fields=2)

    array.add(0.0, 1, 5)
    array.add(0.6, 1, 0)

    assert (array.total(0.6), array.total(0.6, 1)) == (2, 5)


def test_a_cleared_window_is_empty() -> None:
    """Nothing of what came before counts."""
    array = LeapArray(4, 1.0)
    array.add(0.0, 3)

    array.clear()

    assert array.total(0.0) == 0
    array.add(0.0, 1)
    assert array.total(0.0) == 1


@pytest.mark.parametrize("wrong", [(0, 1.0, 1), (1, 0.0, 1), (1, 1.0, 0)])
def test_a_window_without_extent_is_refused(wrong: tuple[int, float, int]) -> None:
    """No buckets, no length or nothing to sum is the author's mistake."""
    with pytest.raises(ValueError, match="a window needs"):
        LeapArray(*wrong)
