"""The heaviest values in bounded memory, beside exact counts."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_sentinel_limiter._cells import Cell, WindowCell
from kinmqtt_sentinel_limiter._hot_parameters import HotValues
from kinmqtt_sentinel_limiter._rules import Environment, ParamRule
from kinmqtt_sentinel_limiter._settings import ParamSettings
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.limiter import Resource, ResourceKind


def _rule(settings: ParamSettings) -> ParamRule:
    return ParamRule(settings, Environment(MetricRegistry(), 100))


def _cell() -> Cell:
    return WindowCell(_rule(ParamSettings(name="p", param="topic", count=1)), 1.0)


def _resource(topic: str) -> Resource:
    return Resource(ResourceKind.PUBLISH, "main", "192.0.2.1", "c", "u", topic)


@given(
    max_values=st.integers(1, 20),
    values=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 9)), max_size=300),
)
def test_what_is_heavy_is_there(max_values: int, values: list[tuple[int, int]]) -> None:
    """However they come, each value above ``n / max_values`` is remembered, and no more than ``max_values`` are."""
    hot = HotValues(max_values, _cell, {})
    exact: Counter[str] = Counter()

    for number, amount in values:
        hot.cell(str(number), amount)
        exact[str(number)] += amount

        assert len(hot) <= max_values
        assert all(value in hot for value, count in exact.items() if count > exact.total() / max_values)


def test_a_flood_of_new_values_costs_a_heavy_one_nothing() -> None:
    """Beside 100,000 values that come once, in bounded memory, a heavy one passes at its count."""
    rule = _rule(ParamSettings(name="p", param="topic", count=10, max_values=50))
    heavy, passed = _resource("heavy"), 0

    for number in range(100_000):
        now = number / 10_000
        flood = rule.cell(_resource(f"new/{number}"), now)
        assert flood is not None and flood.take(1, now) == 0.0
        if number % 25 == 0:
            cell = rule.cell(heavy, now)
            assert cell is not None
            passed += cell.take(1, now) == 0.0
        assert len(rule.values) <= 50

    assert passed == 10 * 10


@given(st.lists(st.integers(0, 9), max_size=400))
def test_each_value_has_its_own_count(values: list[int]) -> None:
    """With room for all values, each passes as often in a second as its count, or that of `items`, says."""
    rule = _rule(ParamSettings(name="p", param="topic", count=5, items={"3": 12.0, "4": 1.0}))
    passed: Counter[str] = Counter()

    for number in values:
        cell = rule.cell(_resource(str(number)), 0.0)
        assert cell is not None
        passed[str(number)] += cell.take(1, 0.0) == 0.0

    asked = Counter(map(str, values))
    counts = {"3": 12, "4": 1}
    assert passed == Counter({value: min(count, counts.get(value, 5)) for value, count in asked.items()})


def test_exceptions_take_no_place_of_others() -> None:
    """A value of `items` is always remembered, beside the ``max_values``."""
    rule = _rule(ParamSettings(name="p", param="topic", count=5, max_values=1, items={"vip": 2.0}))
    vip, other = rule.cell(_resource("vip"), 0.0), rule.cell(_resource("other"), 0.0)
    assert vip is not None and other is not None

    answers = [vip.take(1, 0.0), other.take(1, 0.0), vip.take(1, 0.0), vip.take(1, 0.0)]

    assert answers == [0.0, 0.0, 0.0, -1.0]


def test_values_get_lighter_and_are_forgotten() -> None:
    """What was heavy once gives way when it does not come any more."""
    hot = HotValues(2, _cell, {})
    for _ in range(100):
        hot.cell("old", 1).take(1, 0.0)

    for sweep in range(1, 9):
        hot.sweep(sweep * 200.0)

    assert len(hot) == 0


def test_undone_is_not_counted() -> None:
    """What another rule refused is given back to the value, if it is still there."""
    rule = _rule(ParamSettings(name="p", param="topic", count=1, max_values=1))
    cell = rule.cell(_resource("a"), 0.0)
    assert cell is not None

    cell.take(1, 0.0)
    cell.undo(1)

    assert cell.take(1, 0.0) == 0.0
    rule.values.cell("b", 1)
    cell.undo(1)
    assert "a" not in rule.values
