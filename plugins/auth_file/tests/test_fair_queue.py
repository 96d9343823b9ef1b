"""Turns by themselves: who is next, who gives way, and how long anybody waits at the most."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_auth_file.fair_queue import FAILING_SHARE, FairQueue, network


class Table:
    """Turns of jobs that are numbers, and the addresses with failures."""

    def __init__(self, *failing: str) -> None:
        self.failing = set(failing)
        self.turns: FairQueue[int] = FairQueue(self.failing.__contains__)

    def come(self, *jobs: tuple[str, int]) -> None:
        """Jobs come, each to its line."""
        for line, job in jobs:
            self.turns.add(line, job)

    def taken(self, is_ready: Callable[[str], bool] = lambda line: True) -> list[int]:
        """All jobs in the order of their turns."""
        found = []
        while (turn := self.turns.take(is_ready)) is not None:
            found.append(turn[1])
        return found


# Whose line


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::1", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("::1", "::1"),
        ("local", "local"),
        ("", ""),
    ],
)
def test_a_site_stands_in_one_line(address: str, expected: str) -> None:
    """Of an IPv6 address the first half counts: whoever has one has a half of their own to choose from."""
    assert network(address) == expected


@given(st.ip_addresses(v=6), st.integers(0, (1 << 64) - 1))
def test_no_choice_of_a_second_half_is_another_line(address: object, other: int) -> None:
    """Where the first half says anything."""
    first = int(address) >> 64  # type: ignore[call-overload]
    if first:
        assert network(str(address)) == network(f"{type(address)(first << 64 | other)}")  # type: ignore[call-arg]


# Who is next


def test_lines_have_their_turns_one_after_the_other() -> None:
    """However many stand in one, and in the order in which they came."""
    table = Table()
    table.come(("flood", 1), ("flood", 2), ("flood", 3), ("a", 4), ("b", 5), ("a", 6))

    assert table.taken() == [1, 4, 5, 2, 6, 3]
    assert len(table.turns) == 0


def test_addresses_without_failures_go_first() -> None:
    """One turn in four is for the others all the same."""
    table = Table("bad")
    table.come(*(("bad", number) for number in range(3)), *(("good", number) for number in range(10, 18)))

    assert table.taken() == [10, 11, 12, 0, 13, 14, 15, 1, 16, 17, 2]


def test_who_pauses_has_no_turn() -> None:
    """And holds up none of the others with failures."""
    table = Table("pausing", "ready")
    table.come(("pausing", 1), ("ready", 2), ("ready", 3))

    assert table.taken(lambda line: line == "ready") == [2, 3]
    assert table.turns.waiting("pausing") == 1


def test_a_line_changes_its_class() -> None:
    """With all who stand in it, behind those of that class."""
    table = Table("bad")
    table.come(("bad", 1), ("turns", 2), ("turns", 3), ("good", 4))

    table.failing.add("turns")
    table.turns.reclassify("turns")
    first = table.turns.failing()
    table.failing.clear()
    table.turns.reclassify("bad")

    assert first == ("bad", "turns")
    assert table.taken() == [4, 1, 2, 3]


def test_who_leaves_takes_no_turn() -> None:
    """Wherever it stands; and it leaves once."""
    table = Table()
    table.come(("a", 1), ("a", 2), ("b", 3))

    assert table.turns.remove("a", 1)
    assert table.turns.remove("b", 3)
    assert not table.turns.remove("b", 3)
    assert not table.turns.remove("nobody", 9)
    assert table.turns.all_jobs() == (2,)
    assert table.taken() == [2]


# Who gives way


@pytest.mark.parametrize(
    ("jobs", "failing", "line", "expected"),
    [
        ([("a", 1), ("a", 2), ("a", 3), ("b", 4)], "", "c", ("a", 3)),
        ([("a", 1), ("b", 2)], "", "c", None),
        ([("a", 1), ("a", 2), ("b", 3)], "", "b", None),
        ([("a", 1), ("a", 2), ("a", 3), ("x", 4)], "x", "c", ("x", 4)),
        ([("a", 1), ("a", 2), ("a", 3)], "x", "x", None),
        ([("x", 1), ("y", 2), ("y", 3)], "xy", "c", ("y", 3)),
        ([("x", 1), ("x", 2), ("a", 3)], "xy", "y", ("x", 2)),
        ([], "", "a", None),
    ],
)
def test_who_has_most_gives_way(
    jobs: list[tuple[str, int]], failing: str, line: str, expected: tuple[str, int] | None
) -> None:
    """First those with failures; never an address with one job for another's second."""
    table = Table(*failing)
    table.come(*jobs)

    assert table.turns.eviction_candidate(line) == expected


# How long anybody waits


class Waiting:
    """One job whose turns are counted."""

    def __init__(self, ahead: int, is_sound: bool) -> None:
        self.is_sound = is_sound
        self.turns = 0
        # Each line ahead of its own class once; and while they have theirs, one turn in four is the others'.
        self.set_limits = (
            ceil((ahead + 1) * FAILING_SHARE / (FAILING_SHARE - 1)) + 1 if is_sound else (ahead + 1) * FAILING_SHARE
        )


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("come"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("take"), st.just("")),
        st.tuples(st.just("leave"), st.sampled_from("abcdefgh")),
        st.tuples(st.just("fail"), st.sampled_from("abcdefgh")),
    ),
    max_size=150,
)


@given(STEPS)
def test_the_first_of_a_line_has_its_turn_in_time(steps: list[tuple[str, str]]) -> None:
    """Whatever the others do: after the lines that were ahead, once each, and a turn in four for those with failures.

    Lines fail where none of theirs is watched; the watched job is the first that comes to an empty line.
    """
    table = Table("x")
    watched: dict[str, tuple[int, Waiting]] = {}
    for number, (step, line) in enumerate(steps):
        if step == "come":
            if not table.turns.waiting(line):
                sound = line not in table.failing
                ahead = [each for each in "abcdefgh" if table.turns.waiting(each)]
                same = [each for each in ahead if (each not in table.failing) == sound]
                watched[line] = (number, Waiting(len(same), sound))
            table.come((line, number))
        elif step == "leave":
            if line in watched and table.turns.remove(line, watched[line][0]):
                del watched[line]
        elif step == "fail":
            if line not in watched and not table.turns.waiting(line):
                table.failing ^= {line}
        elif (turn := table.turns.take(lambda line: True)) is not None:
            taken, job = turn
            for each in list(watched):
                first, waiting = watched[each]
                if each == taken and job == first:
                    del watched[each]
                    continue
                waiting.turns += 1
                assert waiting.turns <= waiting.set_limits, (each, steps)


@given(STEPS)
def test_nobody_is_lost_and_nobody_is_taken_twice(steps: list[tuple[str, str]]) -> None:
    """All that came and did not leave has its turn, each line in the order in which they came."""
    table = Table("x")
    left: dict[str, list[int]] = {line: [] for line in "abcdefgh"}
    for number, (step, line) in enumerate(steps):
        if step == "come":
            table.come((line, number))
            left[line].append(number)
        elif step == "leave" and left[line]:
            assert table.turns.remove(line, left[line].pop())
        elif step == "fail":
            table.failing ^= {line}
            table.turns.reclassify(line)
        elif step == "take" and (turn := table.turns.take(lambda line: True)) is not None:
            assert left[turn[0]].pop(0) == turn[1]
        assert len(table.turns) == sum(map(len, left.values()))
        assert all(table.turns.waiting(line) == len(left[line]) for line in left)

    assert sorted(table.taken()) == sorted(job for jobs in left.values() for job in jobs)
