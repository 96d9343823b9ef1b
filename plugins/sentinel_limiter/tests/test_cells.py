"""One key at a time: pacing beside the ideal, and the bounds of every behaviour."""

from __future__ import annotations

from copy import copy
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_sentinel_limiter._cells import (
    REFUSED,
    Cell,
    DelayCell,
    RateCell,
    WindowCell,
)
from kinmqtt_sentinel_limiter._concurrency import ConcurrencyCell
from kinmqtt_sentinel_limiter._pacing import AHEAD_S, PaceCell
from kinmqtt_sentinel_limiter._rules import Environment, FlowRule
from kinmqtt_sentinel_limiter._settings import FlowSettings
from kinmqtt_sentinel_limiter._warm_up import WarmUp, WarmUpCell, WarmUpPaceCell
from kinmqtt_spi.metrics import MetricRegistry

RULE = FlowRule(FlowSettings(name="r", count=1), Environment(MetricRegistry(), 100))

arrivals = st.lists(st.tuples(st.floats(0.0, 0.5), st.integers(1, 20)), min_size=1, max_size=150)
rates = st.sampled_from([0.3, 2.5, 10.0, 100.0])


EACH_CELL = pytest.mark.parametrize(
    "cell",
    [
        WindowCell(RULE, 10.0),
        RateCell(RULE, 10.0, 3.0),
        DelayCell(RULE, 10.0, 3.0),
        PaceCell(RULE, 10.0, inf),
        WarmUpPaceCell(RULE, WarmUp(10.0, 5.0, 3.0), inf, 0.0),
        PaceCell(RULE, 10.0, 0.0),
        WarmUpCell(RULE, WarmUp(10.0, 5.0, 3.0), 1.0, 0.0),
        WarmUpPaceCell(RULE, WarmUp(10.0, 5.0, 3.0), 0.5, 0.0),
        ConcurrencyCell(RULE, 1),
    ],
    ids=lambda cell: type(cell).__name__,
)


def _run(cell: Cell, steps: list[tuple[float, int]]) -> list[tuple[float, int, float]]:
    """When, how many and the answer, for each that came."""
    now, answers = 0.0, []
    for pause_s, amount in steps:
        now += pause_s
        answers.append((now, amount, cell.take(amount, now)))
    return answers


@given(rates, arrivals)
def test_a_window_passes_no_more_than_its_count(rate: float, steps: list[tuple[float, int]]) -> None:
    """Up to any moment: the count of each window begun, what is lent, and the last read."""
    answers = _run(WindowCell(RULE, rate), steps)

    passed = 0
    for now, amount, answer in answers:
        passed += amount if answer == 0.0 else 0
        windows = now // max(1.0, 1 / rate) + 1
        assert passed <= windows * max(rate, 1.0) + max(1.0, rate * 0.1) + 20


@given(rates, st.integers(1, 50), arrivals)
def test_a_bucket_passes_no_more_than_it_holds_and_gets(
    rate: float, burst: int, steps: list[tuple[float, int]]
) -> None:
    """Up to any moment: the burst, what came back, and the last read beyond its first packet."""
    passed = 0
    for now, amount, answer in _run(RateCell(RULE, rate, burst), steps):
        passed += amount if answer == 0.0 else 0
        assert passed <= burst + now * rate + 20


@given(rates, st.sampled_from([0.0, 0.2, 1.0]), arrivals)
def test_pacing_is_one_after_the_other(rate: float, max_queueing_s: float, steps: list[tuple[float, int]]) -> None:
    """The turns of those that pass are as far apart as they are long; who would have to wait too long is refused.

    A single packet is never refused where one more may wait, unless a large read was and has room kept for it.
    """
    turn, kept = -inf, False
    for now, amount, answer in _run(PaceCell(RULE, rate, max_queueing_s), steps):
        before_s = max(turn + 1 / rate - now, 0.0)
        left_s = before_s + (amount - 1) / rate
        nothing_waits = before_s <= min(1 / rate, max_queueing_s) + 1e-7
        if before_s > max_queueing_s + 1e-5 and not nothing_waits:
            assert answer == REFUSED
        if left_s > max(AHEAD_S, max_queueing_s) + 1e-5 and not nothing_waits and now < 60:
            assert answer == REFUSED
        if nothing_waits or (left_s < max_queueing_s - 1e-5 and not kept):
            assert answer != REFUSED
        kept = kept or (answer == REFUSED and amount > 1)
        if answer != REFUSED:
            assert answer == pytest.approx(left_s, abs=1e-4)
            turn = now + left_s


@given(rates, arrivals)
def test_delay_lets_all_pass_and_waits_for_debts(rate: float, steps: list[tuple[float, int]]) -> None:
    """The wait is how long what is owed takes to come back."""
    tokens, last = 5.0, 0.0
    for now, amount, answer in _run(DelayCell(RULE, rate, 5.0), steps):
        tokens = min(5.0, tokens + (now - last) * rate) - amount
        last = now
        assert answer == pytest.approx(max(-tokens / rate, 0.0), abs=1e-4)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 8)), max_size=200))
def test_concurrency_is_never_above_its_count(steps: list[tuple[bool, int]]) -> None:
    """Whatever comes and goes, no more is in use than the count, or one read that is larger and alone."""
    cell, held = ConcurrencyCell(RULE, 5), [0]
    for number, (gives, amount) in enumerate(steps):
        if gives and len(held) > 1:
            cell.release(held[-1], number * 0.1)
            held.pop()
        elif cell.take(amount, number * 0.1) == 0.0:
            held.append(amount)

        assert sum(held) <= 5 or len(held) == 2
        assert cell.in_use == sum(held)


@EACH_CELL
def test_what_is_undone_was_never_taken(cell: Cell) -> None:
    """A thousand takes that are undone leave as much as there was; of those that are kept one is refused soon."""
    for _ in range(1000):
        assert cell.take(1, 1.0) != REFUSED
        cell.undo(1)

    answers = [cell.take(1, 1.0) for _ in range(12)]
    assert answers[0] != REFUSED
    assert any(answers)
    assert cell.spent(1.0) > 0.0
    assert cell.spent(1000.0) <= 0.0 or isinstance(cell, ConcurrencyCell)


@EACH_CELL
@pytest.mark.parametrize("now", [1.0, 1000.0])
def test_a_cell_that_is_gone_lets_nothing_simply_pass(cell: Cell, now: float) -> None:
    """Whoever still holds it notices, whatever is given back to it, without being looked at where all is well."""
    gone = copy(cell)
    gone.forget()

    gone.release(1, now)

    assert gone.forgotten
    assert all(gone.take(1, now) != 0.0 for _ in range(3))
