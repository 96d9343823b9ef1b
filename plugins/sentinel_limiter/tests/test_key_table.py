"""A rule's cells by key: bounded, and the heaviest stay."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_sentinel_limiter._cells import WindowCell
from kinmqtt_sentinel_limiter._concurrency import ConcurrencyCell
from kinmqtt_sentinel_limiter._key_table import KeyTable, key_of
from kinmqtt_sentinel_limiter._rules import Environment, FlowRule
from kinmqtt_sentinel_limiter._settings import FlowSettings
from kinmqtt_spi.metrics import MetricRegistry

RULE = FlowRule(FlowSettings(name="r", count=1), Environment(MetricRegistry(), 100))


@given(st.integers(9, 200), st.lists(st.tuples(st.integers(0, 500), st.floats(0.0, 3.0)), max_size=400))
def test_there_are_never_more_than_max_keys(max_keys: int, uses: list[tuple[int, float]]) -> None:
    """Whoever comes, and however fast; who is deep in debt is still there."""
    table, now = KeyTable(max_keys, lambda now: WindowCell(RULE, 1.0)), 0.0
    debtor = table.cell("debtor", now)
    debtor.take(1_000_000, now)

    for key, pause_s in uses:
        now += pause_s
        table.cell(str(key), now).take(1, now)
        table.sweep(now, 3)

        assert len(table.cells) <= max_keys
        assert table.cells["debtor"] is debtor


def test_what_is_dropped_says_so() -> None:
    """Both by a sweep and where room was needed."""
    table = KeyTable(2, lambda now: WindowCell(RULE, 1.0))
    swept = table.cell("a", 0.0)
    table.sweep(10.0, 100)
    pushed = [table.cell(key, 10.0) for key in "bc"]
    for cell in pushed:
        cell.take(1, 10.0)

    table.cell("d", 10.0)

    assert swept.forgotten
    assert any(cell.forgotten for cell in pushed)


def test_what_is_held_stays() -> None:
    """Where all are in use there are more keys than there should be, until some are given back."""
    table = KeyTable(4, lambda now: ConcurrencyCell(RULE, 1))

    for number in range(100):
        table.cell(str(number), 0.0).take(1, 0.0)
    held = len(table.cells)
    for cell in table.cells.values():
        cell.release(1, 0.0)
    for number in range(100, 110):
        table.cell(str(number), 0.0)

    assert held == 100
    assert len(table.cells) <= 50


def test_a_digest_is_no_name() -> None:
    """Nobody can name a client so that it shares another's key."""
    names = ["", "a", "a" * 128, "a" * 129, "b" * 129, "\ud800" * 200]

    keys = [key_of(name) for name in names]

    assert keys[:3] == names[:3]
    assert len(set(keys)) == len(keys)
    assert all(key.startswith("\0") and len(key) == 65 for key in keys[3:])


def test_a_sweep_keeps_up_with_what_comes() -> None:
    """However many keys that is: those of a few seconds are there at most."""
    table = KeyTable(100_000, lambda now: WindowCell(RULE, 1.0))

    for second in range(20):
        for number in range(1000):
            table.cell(f"{second}-{number}", float(second)).take(1, float(second))
        table.sweep(float(second), 10)

    assert len(table.cells) <= 8000
