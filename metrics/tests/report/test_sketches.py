"""Percentiles of a report: read from the tables' sketches, of all values together."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pytest
from datasketches import kll_doubles_sketch
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.report import ReportError, make
from kinmqtt_metrics.report.facts import OTHER_NODES
from kinmqtt_metrics.report.sketches import QUANTILES, Sketches
from metrics_harness.report_facts import facts_of
from metrics_harness.table_data import START, sketched, write

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DISTRIBUTIONS: Final[dict[str, Callable[[random.Random], float]]] = {
    "one value": lambda _: 7.25,
    "even": lambda chance: chance.random(),
    "lengths": lambda chance: math.exp(chance.gauss(-5, 4)),
    "steps": lambda chance: float(chance.choice((-1e9, 0, 0, 3, 1e9))),
}

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=60)


def exact(values: Sequence[float], share: float) -> float:
    """The least value that no more than so many exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values) - 1e-9) - 1)]


def assert_within(values: Sequence[float], found: tuple[float, ...] | None) -> None:
    """What was found is of ranks that are off by the error of a sketch, or right where it holds all values."""
    assert found is not None
    # The documented error is that of 99 in 100 sketches, which throw dice; none is beyond twice as much.
    most = 2 * kll_doubles_sketch.get_normalized_rank_error(200, False) if len(values) >= 200 else 0
    ordered = np.sort(values)
    for value, share in zip(found, QUANTILES, strict=True):
        below, up_to = (np.searchsorted(ordered, value, side) / len(values) for side in ("left", "right"))
        assert below - most <= share <= up_to + most, value


def ended(second: int, lengths_s: Sequence[float], node: str = "a", reason: str = "success") -> dict[str, Any]:
    """A row of ``connections``, as the pipeline makes it."""
    row = {"window_start": START + timedelta(seconds=second), "window_s": 10, "node": node, "reason": reason}
    row |= {"connections": len(lengths_s), "sum_s": sum(lengths_s), "max_s": max(lengths_s)}
    row |= {f"p{round(100 * q)}_s": exact(lengths_s, q) for q in QUANTILES}
    return row | {"sketch": sketched(lengths_s)}


def gauge(second: int, values: Sequence[float], **more: Any) -> dict[str, Any]:
    """A row of ``gauges``, likewise."""
    row = {"window_start": START + timedelta(seconds=second), "window_s": 10, "node": "a", "name": "queued.count"}
    row |= {"unit": "messages", "labels": {}, "samples": len(values), "min": min(values), "max": max(values)}
    row |= {"mean": sum(values) / len(values)} | {f"p{round(100 * q)}": exact(values, q) for q in QUANTILES}
    return row | {"sketch": sketched(values)} | more


def test_a_median_is_that_of_all_connections(tmp_path: Path) -> None:
    """A few that lasted for hours, in windows of their own, don't make the median of thousands of short ones."""
    rows = [ended(0, [0.002] * 5), *(ended(10 * n, [5000.0]) for n in range(1, 4))]
    write(tmp_path, t.CONNECTIONS, rows)

    of = facts_of(tmp_path).lengths["success"]

    assert (of.connections, of.p50_s, of.max_s) == (8, 0.002, 5000.0)


def test_a_step_of_several_windows_has_the_percentiles_of_all_of_them(tmp_path: Path) -> None:
    """Of windows and reasons, at each node for itself."""
    rows = []
    for window in range(1000):
        rows.append(ended(10 * window, [1.0, 2.0], reason="success"))
        rows.append(ended(10 * window, [1000.0 + window], reason="keep_alive_timeout"))
    rows.append(ended(0, [7.0], node="b"))
    write(tmp_path, t.CONNECTIONS, rows)

    lines = facts_of(tmp_path).length_lines

    assert set(np.unique(lines["a"].p50[~np.isnan(lines["a"].p50)])) == {2.0}
    assert lines["b"].p50[0] == lines["b"].p99[0] == 7.0


def test_percentiles_of_a_gauge_are_those_of_its_samples(tmp_path: Path) -> None:
    """Of a step's windows together."""
    rows = [gauge(10 * window, [0.0, 0.0, 0.0, 100.0 if window % 2 else 0.0]) for window in range(600)]
    write(tmp_path, t.GAUGES, rows)

    facts = facts_of(tmp_path)

    assert facts.axis.step_s == 20
    spread = facts.gauge_spreads["a", "queued.count"]
    assert set(spread.p50[:300]) == {0.0}
    assert set(spread.p99[:300]) == {100.0}


@given(st.lists(VALUES, min_size=1, max_size=3))
def test_sketches_of_few_values_are_exact_together(windows: list[list[float]]) -> None:
    """Below k values a sketch holds each of them."""
    sketches = Sketches()
    for values in windows:
        assert sketches.add(sketched(values), len(values), "all")

    together = [value for values in windows for value in values]
    assert sketches.quantiles("all") == tuple(exact(together, q) for q in QUANTILES)


def test_sketches_of_many_values_stay_within_their_error() -> None:
    """However many are put together, and in whatever order their values come."""
    for draw in DISTRIBUTIONS.values():
        chance, sketches = random.Random(1), Sketches()
        values = sorted(draw(chance) for _ in range(200_000))
        parts = [values[begin : begin + 500] for begin in range(0, 200_000, 500)]
        chance.shuffle(parts)
        for part in parts:
            assert sketches.add(sketched(part), len(part), "all")
        assert_within(values, sketches.quantiles("all"))


def test_lengths_of_nodes_that_are_told_together_are_merged(tmp_path: Path) -> None:
    """What has no colour of its own is not lost."""
    rows = [ended(0, [float(number)] * 10, node=f"n{number}") for number in range(5)]
    write(tmp_path, t.CONNECTIONS, rows)

    facts = facts_of(tmp_path, most_nodes=3)

    assert set(facts.length_lines) == {"n0", "n1", OTHER_NODES}
    assert facts.length_lines[OTHER_NODES].p50[0] == 3.0
    assert facts.length_lines[OTHER_NODES].p99[0] == 4.0


@pytest.mark.parametrize(
    "content",
    [None, b"", b"\0" * 8, b"\0" * 400, sketched([1.0])[:-1], sketched(range(1000))[:-8], sketched([1.0, 2.0])],
)
def test_what_is_no_sketch_is_told_and_in_no_percentile(content: bytes | None, tmp_path: Path) -> None:
    """Or is one of other values than the row's; sums and means have the row all the same."""
    write(tmp_path, t.CONNECTIONS, [ended(0, [3.0]), ended(0, [1.0] * 5) | {"sketch": content}])

    facts = make(tmp_path, tmp_path / "report.html")

    of = facts.lengths["success"]
    assert (of.connections, of.p50_s, of.sum_s) == (6, 3.0, 8.0)
    said = "1 row of the tables connections has no sketch that can be read"
    assert said in (tmp_path / "report.html").read_text("utf-8")


SKETCHES: Final = {number: sketched(range(number)) for number in (1, 2, 50, 1000, 20_000)}


@given(
    st.sampled_from(sorted(SKETCHES)),
    st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), min_size=1, max_size=4),
    st.integers(0, 40),
    st.booleans(),
)
def test_a_damaged_sketch_ends_nothing(number: int, damage: list[tuple[float, int]], cut: int, head: bool) -> None:
    """The library believes what a sketch says of itself, and would read where nothing is."""
    content = bytearray(SKETCHES[number])
    for place, byte in damage:
        content[int(place * (min(80, len(content)) if head else len(content)))] = byte
    sketches = Sketches()

    for _ in range(3):
        sketches.add(bytes(content[: len(content) - cut if cut < 8 else None]), number, "all")

    found = sketches.quantiles("all")
    assert found is None or len(found) == 3


def test_without_datasketches_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of whatever else a report needs."""
    monkeypatch.setitem(__import__("sys").modules, "datasketches", None)

    with pytest.raises(ReportError, match=r"datasketches.*pip install 'kinmqtt-metrics\[report\]'"):
        make(tmp_path, tmp_path / "report.html")


# Spark's


@pytest.mark.parametrize("number", [1, 2, 199, 201, 60_000])
def test_sketches_of_spark_are_read_as_spark_reads_them(number: int, spark: SparkSession) -> None:
    """Bytes, number, bounds and percentiles, as made, and as merged in Spark and here."""
    chance = random.Random(number)
    for name, draw in DISTRIBUTIONS.items():
        values = [draw(chance) for _ in range(number)]
        rows = spark.createDataFrame(
            [(value, place % 7) for place, value in enumerate(values)], "value double, part int"
        )
        parts = rows.groupBy("part").agg({"*": "count"}).count()
        rows.createOrReplaceTempView("numbers")
        made = spark.sql(
            "with each as (select part, count(*) n, kll_sketch_agg_double(value) sketch from numbers group by part) "
            "select collect_list(struct(n, sketch)) each, kll_merge_agg_double(sketch) whole from each"
        ).first()
        assert made is not None
        read = spark.sql(
            "select kll_sketch_get_quantile_double(:sketch, array(0.5D, 0.95D, 0.99D)) of, "
            "kll_sketch_get_n_double(:sketch) n",
            args={"sketch": bytearray(made["whole"])},
        ).first()
        assert read is not None

        sketches, merged = Sketches(), Sketches()
        assert sketches.add(bytes(made["whole"]), number, "all"), name
        for part in made["each"]:
            assert merged.add(bytes(part["sketch"]), part["n"], "all"), name

        one = kll_doubles_sketch.deserialize(bytes(made["whole"]))
        assert (one.n, one.get_min_value(), one.get_max_value()) == (read["n"], min(values), max(values))
        assert len(made["each"]) == parts
        assert sketches.quantiles("all") == tuple(read["of"])
        for found in (sketches.quantiles("all"), merged.quantiles("all")):
            assert_within(values, found)
