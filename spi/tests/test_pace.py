"""The pace of a log's lines."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.pace import Pace, and_others


def test_the_first_is_let_through_and_the_next_when_its_time_has_come() -> None:
    """What comes in between is held back and counted."""
    clock = TurnableClock()
    pace = Pace(clock, 60.0)

    answers = [pace.due(), pace.due(), pace.due()]
    clock.advance(59.9)
    answers.append(pace.due())
    clock.advance(0.1)
    answers += [pace.due(), pace.due()]

    assert answers == [0, None, None, None, 3, None]


@given(st.lists(st.floats(0, 100)), st.floats(1, 50))
def test_nothing_is_lost_between_what_is_let_through(waits: list[float], every_s: float) -> None:
    """Those let through are far enough apart, and with those they count they are all but the last held back."""
    clock = TurnableClock()
    pace = Pace(clock, every_s)
    moments, counted, behind = [], 0, 0

    for wait in waits:
        clock.advance(wait)
        held_back = pace.due()
        if held_back is None:
            behind += 1
        else:
            counted += held_back + 1
            behind = 0
            moments.append(clock.monotonic())

    assert counted + behind == len(waits)
    assert all(later - earlier >= every_s * (1 - 1e-9) for earlier, later in pairwise(moments))


def test_a_line_says_how_many_it_stands_for() -> None:
    """Nothing is added where there are no others."""
    assert and_others(3) == " (3 more since the last such line)"
    assert and_others(0) == ""
