"""Sums of a report beside sums made by hand."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report.facts import OTHER_NODES
from kinmqtt_metrics.report.histograms import quantile_of
from kinmqtt_metrics.report.narrative import Narrative
from kinmqtt_metrics.report.plots import Painter
from kinmqtt_metrics.report.time_axis import Axis, Span
from metrics_harness.report_facts import facts_of
from metrics_harness.table_data import START, World, write


def rate(second: int, delta: int, name: str = "messages.received", node: str = "a", **more: Any) -> dict[str, Any]:
    """A row of ``rates``."""
    row = {"window_start": START + timedelta(seconds=second), "window_s": 10, "node": node, "name": name}
    return {**row, "unit": "messages", "labels": {}, "delta": delta, "samples": 1, **more}


def test_sums_are_exact_and_nothing_is_lost_between_steps(tmp_path: Path) -> None:
    """What is drawn adds up to what the table has, to the message, over files and beyond 2^53."""
    rows = [rate(10 * n, 2**52 + n) for n in range(700)]
    write(tmp_path, t.RATES, rows[:300], 0)
    write(tmp_path, t.RATES, rows[300:], 1)

    facts = facts_of(tmp_path)

    assert facts.totals == {("a", "messages.received"): sum(row["delta"] for row in rows)}
    assert facts.axis.steps <= 300
    assert np.nansum(facts.rates["a", "messages.received"]) == pytest.approx(700 * 2**52)


def test_a_window_without_a_row_is_a_gap_and_no_zero(tmp_path: Path) -> None:
    """A broker that was down is told from one that had nothing to do."""
    write(tmp_path, t.RATES, [rate(0, 5), rate(10, 0), rate(30, 7)])

    line = facts_of(tmp_path).rates["a", "messages.received"]

    assert line.tolist()[:2] == [5, 0]
    assert np.isnan(line[2])
    assert line[3] == 7


@pytest.mark.parametrize(
    ("samples", "empty", "told"),
    [(1, (3,), 0), (1, (3, 4), 1), (3, (3,), 1)],
    ids=["a late sample", "two windows", "several samples in a window"],
)
def test_a_sample_that_came_late_is_no_outage(
    tmp_path: Path, samples: int, empty: tuple[int, ...], told: int
) -> None:
    """Windows as long as the interval between samples have none now and then, and two afterwards."""
    rows = [rate(10 * n, 5, samples=samples) for n in range(9) if n not in empty]
    write(tmp_path, t.RATES, rows)

    facts = facts_of(tmp_path)

    assert len(Narrative(facts, Painter(facts)).outages()) == told


def test_only_the_span_and_the_nodes_that_were_asked_for_count(tmp_path: Path) -> None:
    """``--since``, ``--until`` and ``--node`` leave out everything else."""
    write(tmp_path, t.RATES, [rate(10 * n, 1, node=node) for n in range(10) for node in "ab"])
    begin_s = START.timestamp()

    facts = facts_of(tmp_path, span=Span(begin_s + 20, begin_s + 50), nodes=frozenset("b"))

    assert facts.totals == {("b", "messages.received"): 3}


def test_rules_of_the_limiter_are_told_by_name(tmp_path: Path) -> None:
    """What a rule in the shadow would have done is not mixed with others'."""
    rows = [
        rate(0, n, "limiter.shadow_blocked", labels={"plugin": "sentinel_limiter", "rule": rule})
        for rule, n in (("x", 3), ("y", 4), ("x", 5))
    ]
    write(tmp_path, t.RATES, rows)

    facts = facts_of(tmp_path)

    assert facts.rule_totals == {("limiter.shadow_blocked", "x"): 8, ("limiter.shadow_blocked", "y"): 4}


@pytest.mark.parametrize("rules", [2, 20])
def test_rules_in_the_shadow_are_not_stacked(rules: int, tmp_path: Path) -> None:
    """A packet counts under its client's rule and its topic's: a plot shows no more packets than there were."""
    rows = [
        rate(second, 300 - n, "limiter.shadow_blocked", labels={"rule": f"r{n}"})
        for n in range(rules)
        for second in (0, 10)
    ]
    write(tmp_path, t.RATES, rows)

    plot = Painter(facts_of(tmp_path)).shadow()

    assert plot is not None
    [axis] = plot.figure.axes
    drawn = [patch.get_data() for patch in axis.patches if hasattr(patch, "get_data")]
    assert max(np.nanmax(steps.values) for steps in drawn) == np.nanmax(drawn[0].values)
    assert len(drawn) == min(rules, 8)
    assert all(steps.baseline is None for steps in drawn)
    assert axis.get_ylim()[1] < 1.2 * np.nanmax(drawn[0].values)


def test_many_nodes_are_told_together_and_their_sums_stay(tmp_path: Path) -> None:
    """The busiest keep their names; nothing is lost of the others."""
    write(tmp_path, t.RATES, [rate(0, 10 - n, node=f"n{n}") for n in range(6)])

    facts = facts_of(tmp_path, most_nodes=3)

    assert facts.nodes == ["n0", "n1", OTHER_NODES]
    assert facts.others == ["n2", "n3", "n4", "n5"]
    assert facts.totals[OTHER_NODES, "messages.received"] == 8 + 7 + 6 + 5
    assert facts.total("messages.received") == 45


def test_tops_and_their_rest_are_everything(tmp_path: Path) -> None:
    """Named and not named, all bytes that the table has are told."""
    World(windows=30).write(tmp_path)
    facts = facts_of(tmp_path)

    named = sum(size for by_node in facts.clients.values() for _, size in by_node.values())
    traffic = sum(n for (_, name), n in facts.totals.items() if name == "messages.received")

    assert len(facts.clients) == 12
    assert named + facts.clients_rest[1] == traffic * 148


def test_histograms_with_other_bounds_are_not_added_up(tmp_path: Path) -> None:
    """A broker that was updated may count in other buckets; rows whose counts don't fit are left out."""
    window = {"window_start": START, "window_s": 10, "node": "a", "name": "h", "unit": "seconds", "sum": 1.0}
    rows = [
        {**window, "bounds": [1.0, 2.0], "counts": [10, 0, 0]},
        {**window, "bounds": [1.0, 2.0], "counts": [0, 20, 0]},
        {**window, "bounds": [1.0, 3.0], "counts": [1, 1, 1]},
        {**window, "bounds": [1.0, 2.0], "counts": [9, 9]},
    ]
    write(tmp_path, t.HISTOGRAMS, rows)

    line = facts_of(tmp_path).histograms["a", "h"]

    assert line.observations == 30
    assert line.whole[0] == pytest.approx(1.25)


def test_storms_are_found_and_the_worst_are_kept(tmp_path: Path) -> None:
    """However many there are, the report has those with the most connects, in the order of time."""
    rows = [
        {
            "window_start": START + timedelta(seconds=10 * n),
            "window_s": 10,
            "node": "a",
            "connects": n,
            "clients": 1,
            "client": "c",
            "most": n,
            "storm": n % 2 == 0,
        }
        for n in range(100)
    ]
    write(tmp_path, t.RECONNECTS, rows)

    facts = facts_of(tmp_path)

    assert facts.storm_windows == 50
    assert [storm.connects for storm in facts.storms] == list(range(76, 100, 2))
    assert facts.connect_total == sum(range(100))


@given(st.lists(st.integers(0, 50), min_size=4, max_size=4), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_that_holds_it(counts: list[int], q: float) -> None:
    """Interpolation never leaves the bucket, and what is beyond the last bound is told as that bound."""
    bounds = (1.0, 2.0, 4.0)
    [value] = quantile_of(np.array([counts]), bounds, q)

    if not sum(counts):
        assert np.isnan(value)
        return
    rank, upto = q * sum(counts), 0
    edges: Sequence[float] = (0.0, *bounds, 4.0)
    for bucket, count in enumerate(counts):
        upto += count
        if count and upto >= rank * (1 - 1e-9):
            assert edges[bucket] <= value <= edges[bucket + 1]
            return
    raise AssertionError("no bucket holds it")


@given(st.integers(1, 10**7), st.integers(1, 3600), st.integers(0, 10**9))
def test_steps_cover_the_span_and_are_whole_windows(windows: int, window_s: int, start: int) -> None:
    """No window falls outside, and none is cut in two."""
    span = Span(float(start * window_s), float((start + windows) * window_s))
    axis = Axis.of(span, window_s)

    assert axis.step_s % window_s == 0
    assert axis.first_s <= span.start_s
    assert axis.first_s + axis.steps * axis.step_s >= span.end_s
    assert axis.steps <= 302
    assert axis.lengths_s.sum() == pytest.approx(span.length_s)
