"""Ranges of ``seq``: the same as sets, in less room."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics.intervals import Numbers, Ranges, common, gaps, ranges_of, union, written_down
from kinmqtt_metrics.pipeline.commits import Commit, Commits, commit_name

numbers = st.sets(st.integers(1, 400) | st.integers(1, 2**62))


def array(of: Iterable[int]) -> Numbers:
    """As Arrow hands them over."""
    return np.array(list(of), np.int64)


def members(ranges: Ranges) -> set[int]:
    """What ranges hold, where that is few."""
    return {number for first, last in ranges for number in range(first, last + 1)}


@given(st.lists(st.integers(1, 400) | st.integers(1, 2**62)))
def test_ranges_hold_the_numbers(of: list[int]) -> None:
    """No record is taken for read that was not, or the other way round; ranges rise and do not touch."""
    ranges = ranges_of(array(of))

    assert members(ranges) == set(of)
    assert all(before[1] + 1 < after[0] for before, after in itertools.pairwise(ranges))


@given(numbers, numbers)
def test_two_sets_of_ranges_are_united_and_compared(one: set[int], other: set[int]) -> None:
    """A segment that comes again is told from a new one, also where they overlap in part."""
    a, b = ranges_of(array(one)), ranges_of(array(other))

    assert members(common(a, b)) == one & other
    assert union(a, b) == ranges_of(array(one | other))


def test_a_long_life_is_one_range() -> None:
    """What is remembered of a broker does not grow with what it wrote."""
    assert ranges_of(np.arange(1, 3_000_000)) == [(1, 2_999_999)]


def test_gaps_are_told_and_bounded() -> None:
    """Records that were deleted unread, or are not published yet, are named at the end of each run."""
    whole = ("a", "1"), [(1, 9)]
    torn = ("b", "2"), [(3, 4), (6, 8)]
    many = [(("c", str(n)), [(2 * k, 2 * k) for k in range(1, 9)]) for n in range(5)]

    assert list(gaps(dict([whole]))) == []
    assert list(gaps(dict([whole, torn]))) == ["3 records of b 2 were not read: seq 1-2, 5"]
    assert list(gaps(dict([torn, *many])))[1:] == [
        *(f"8 records of c {n} were not read: seq 1, 3, 5, 7, 9 and 3 more gaps" for n in range(4)),
        "of 1 more lives of brokers records were not read, too",
    ]


def test_what_the_pipeline_wrote_down_last_is_read(tmp_path: Path) -> None:
    """Readers of tables find what its steps have, without it; where there is none, or none that is whole, nothing."""
    assert written_down(tmp_path) is None
    steps = Commits(tmp_path)
    steps.prepare({})
    assert written_down(tmp_path) is None
    for batch in range(3):
        seen = {("n1", "b1"): [(1, 5 + batch)], ("n2", "b2"): [(1, 2), (7, 9)]}
        with steps.making(commit_name(batch)) as folder:
            Commit(seen=seen).write(folder)
        assert written_down(tmp_path) == seen == steps.last()[1].seen
    (steps.folder / ".making-9").mkdir()
    assert written_down(tmp_path) == seen
    (steps.folder / commit_name(2) / "step.json").write_text('{"seen": [[1]]}')
    assert written_down(tmp_path) is None
