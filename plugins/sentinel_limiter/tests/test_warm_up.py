"""Warming up beside the ideal curve."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_sentinel_limiter._rules import Environment, FlowRule
from kinmqtt_sentinel_limiter._settings import FlowSettings
from kinmqtt_sentinel_limiter._warm_up import WarmUp, WarmUpCell
from kinmqtt_spi.reference.metric import MetricRegistry

RULE = FlowRule(FlowSettings(name="r", count=1), Environment(MetricRegistry(), 100))


@given(st.lists(st.integers(1, 50), min_size=1, max_size=200), st.floats(1.5, 6.0), st.sampled_from([1.0, 30.0]))
def test_warming_up_is_the_curve(amounts: list[int], cold_factor: float, warm_up_s: float) -> None:
    """However it is cut into reads, so many packets are due when the ideal curve has passed so many."""
    curve = WarmUp(20.0, warm_up_s, cold_factor)
    cell = WarmUpCell(RULE, curve, 1.0, 0.0)
    passed = 0

    for amount in amounts:
        assert cell.take(amount, cell.due) == 0.0
        passed += amount

        assert curve.passed_by(cell.due) == pytest.approx(passed, rel=1e-6)


def test_the_curve_is_cold_and_gets_warm() -> None:
    """It begins slower by the cold factor, is warm after ``warm_up_s``, and cools down in as long."""
    curve = WarmUp(100.0, 10.0, 3.0)
    cell = WarmUpCell(RULE, curve, 0.0, 0.0)

    assert curve.one_s(curve.most) == pytest.approx(3 / 100)
    assert curve.passed_by(10.0) == pytest.approx(500.0)
    cell.take(1000, 0.0)
    warm, due = cell.stored, cell.due
    cell.take(1, due + 10.0)
    assert (warm, cell.stored) == (0.0, curve.most - 1)
