"""Tables from rows of the state, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.pipeline import window_tables
from kinmqtt_metrics.pipeline.settings import PipelineSettings
from kinmqtt_metrics.pipeline.state import COLUMNS, EVENT, TRAFFIC
from kinmqtt_metrics.record import OTHERS

SETTINGS = PipelineSettings(Path("landing"), Path("tables"), top=2, storm_connects=10, storm_client=3)

SCHEMA = pa.schema([(name, window_tables.TYPES[kind]) for name, kind in COLUMNS.items()])


def made(*rows: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The tables' rows of such rows of the state."""
    whole = [{"start": 0, "node": "a", "n": 1, "a": 0, "b": 0} | row for row in rows]
    closed = pa.Table.from_pylist(whole, SCHEMA)
    return {table.name: rows.to_pylist() for table, rows in window_tables.tables(closed, SETTINGS)}


def connected(client: str | None, times: int = 1) -> dict[str, Any]:
    """A client that connected so often."""
    return {"family": EVENT, "k1": "connected", "k3": client, "a": times}


histograms = st.integers(1, 6).flatmap(
    lambda size: st.tuples(
        st.lists(st.floats(-100, 100), min_size=size, max_size=size, unique=True).map(sorted),
        st.lists(st.integers(0, 50), min_size=size + 1, max_size=size + 1),
    )
)


@given(histograms, st.floats(0.001, 1))
def test_a_percentile_lies_in_the_bucket_of_its_observation(
    given: tuple[list[float], list[int]], share: float
) -> None:
    """Interpolation never leaves the bucket that holds the observation, and nothing comes of no observations."""
    bounds, counts = given

    value = window_tables.quantile(bounds, counts, share)

    if not any(counts):
        assert value is None
        return
    place = share * sum(counts)
    number = next(number for number in range(len(counts)) if sum(counts[: number + 1]) >= place)
    lower = bounds[number - 1] if number else min(0.0, bounds[0])
    upper = bounds[min(number, len(bounds) - 1)]
    assert value is not None
    assert min(lower, upper) - 1e-9 <= value <= upper + 1e-9


pairs = st.lists(
    st.tuples(
        st.sampled_from([None, OTHERS, "a", "b", "c", "d"]),
        st.sampled_from(["x", "y"]),
        st.integers(0, 5),
        st.integers(0, 9),
    ),
    unique_by=lambda row: row[:2],
)


@given(pairs)
def test_ranks_and_the_rest_add_up(given: list[tuple[str | None, str, int, int]]) -> None:
    """Of what clients published nothing is left out: who is not named is in the row of rank 0."""
    rows = [{"family": TRAFFIC, "k1": c, "k2": p, "a": m, "b": b} for c, p, m, b in given]

    top = made(*rows).get("top_clients", [])

    assert sum(row["bytes"] for row in top) == sum(row[3] for row in given)
    assert sum(row["messages"] for row in top) == sum(row[2] for row in given)
    named = sorted((row for row in top if row["rank"]), key=lambda row: row["rank"])
    assert [row["rank"] for row in named] == list(range(1, len(named) + 1))
    assert len(named) == min(2, len({row[0] for row in given} - {None, OTHERS}))
    assert [row["bytes"] for row in named] == sorted((row["bytes"] for row in named), reverse=True)


def test_one_client_that_comes_again_and_again_is_a_storm() -> None:
    """It is named, and how often it came; of two the first by name."""
    (row,) = made(connected("b", 3), connected("c", 3), connected("a"))["reconnects"]

    assert (row["connects"], row["clients"], row["client"], row["most"], row["storm"]) == (7, 3, "b", 3, True)


def test_many_clients_at_once_are_a_storm() -> None:
    """Also where each comes once."""
    (row,) = made(*(connected(f"c{number}") for number in range(10)))["reconnects"]
    (calm,) = made(*(connected(f"c{number}") for number in range(9)))["reconnects"]

    assert (row["storm"], calm["storm"]) == (True, False)


def test_connects_of_nobody_are_counted_and_not_named() -> None:
    """A record without a client is no client."""
    (row,) = made(connected(None, 2))["reconnects"]

    assert (row["connects"], row["clients"], row["client"], row["most"]) == (2, 0, None, None)


def test_nothing_makes_no_table() -> None:
    """Tables without rows have no files."""
    assert made() == {}


def test_files_have_the_columns_of_the_contract(tmp_path: Path) -> None:
    """Types are those that tables.py promises, times in UTC."""
    closed = pa.Table.from_pylist([{"start": 5, "node": "a", "a": 1, "b": 2, "n": 1} | connected("x")], SCHEMA)
    for table, rows in window_tables.tables(closed, SETTINGS):
        window_tables.write(table, rows, tmp_path / "file.parquet")

        written = pq.read_schema(tmp_path / "file.parquet")
        assert written.names == list(table.columns)
        assert written.field("window_start").type == pa.timestamp("us", "UTC")
    assert t.EVENTS.columns["clients"] == "bigint"


def test_counts_beyond_64_bits_end_nothing() -> None:
    """A percentile is left out where a sum has wrapped."""
    assert window_tables.quantile([1.0], [2**62, -(2**62)], 0.5) is None
