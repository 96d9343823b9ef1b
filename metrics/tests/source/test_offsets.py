"""Offsets: each segment once, in any order."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxBytes, ReadMaxFiles
from pyspark.sql.types import StructType

from kinmqtt_metrics.source.offsets import Key, Taken
from kinmqtt_metrics.source.reader import Files, Options, StreamReader
from metrics_harness.segments import BOOT, publish

numbers = st.integers(1, 40)
keys = st.tuples(st.sampled_from(["a", "b/é"]), st.sampled_from(["0" * 16, "f" * 16]), numbers) | st.tuples(
    st.just(""), st.sampled_from(["date=1/x", "date=2/y"]), st.just(0)
)


@given(st.sets(keys), st.sets(keys))
def test_an_offset_says_what_was_taken(before: set[Key], more: set[Key]) -> None:
    """Through JSON and back nothing is lost, and the difference of two offsets is what lies between them."""
    start = Taken().and_also(before)
    end = start.and_also(more)
    back = Taken.from_json(json.loads(json.dumps(end.to_json())))

    assert list(back.beyond(start)) == sorted(more - before)
    assert list(back.beyond(Taken())) == sorted(more | before)
    assert all(key in back for key in more | before)
    assert json.dumps(back.to_json()) == json.dumps(Taken().and_also(sorted(more | before)).to_json())


@pytest.mark.parametrize(
    "offset",
    [
        {},
        {"form": 2, "segments": {}, "foreign": {}},
        {"form": 1, "segments": {"a": {"b": "3-1"}}, "foreign": {}},
        {"form": 1, "segments": {"a": {"b": "1-3,4"}}, "foreign": {}},
        {"form": 1, "segments": {"a": {"b": "x"}}, "foreign": {}},
        {"form": 1, "segments": {"a": "1"}, "foreign": {}},
    ],
)
def test_an_offset_of_something_else_is_refused(offset: dict[str, object]) -> None:
    """A checkpoint that another source wrote gives an error that says what to do."""
    with pytest.raises(ValueError, match="use another checkpointLocation"):
        Taken.from_json(offset)


arrivals = st.lists(
    st.lists(
        st.tuples(st.sampled_from(["n1", "n2"]), st.integers(1, 12), st.sampled_from(["2026-11-20", "2026-11-21"]))
    ),
    max_size=6,
)
limits = st.lists(
    st.just(ReadAllAvailable())
    | st.builds(ReadMaxFiles, st.integers(1, 4))
    | st.builds(ReadMaxBytes, st.integers(1, 9000)),
    min_size=1,
    max_size=6,
)


@given(arrivals, limits)
def test_each_segment_is_read_once_whatever_arrives_and_whatever_the_limit(
    tmp_path_factory: pytest.TempPathFactory, arrivals: list[list[tuple[str, int, str]]], limits: list[ReadLimit]
) -> None:
    """Segments that come in any order, twice, below other dates, with any limit: each is in one batch, and a batch
    that a restarted reader repeats is the same.
    """
    landing = tmp_path_factory.mktemp("landing")
    options = CaseInsensitiveDict({"path": str(landing)})
    reader = StreamReader(Options(options), StructType())
    offset = reader.initialOffset()
    batches: list[list[Key]] = []

    def step(limit: ReadLimit) -> bool:
        nonlocal offset
        end = reader.latestOffset(offset, limit)
        files = _files(reader, offset, end)
        restarted = StreamReader(Options(options), StructType())
        assert _files(restarted, json.loads(json.dumps(offset)), json.loads(json.dumps(end))) == files
        if isinstance(limit, ReadMaxFiles):
            assert len(files) <= limit.max_files
        if isinstance(limit, ReadMaxBytes) and len(files) > 1:
            assert sum((landing / path).stat().st_size for _, path in files) <= limit.max_bytes
        assert bool(files) == (end != offset)
        batches.append([key for key, _ in files])
        offset = end
        return bool(files)

    for at, arrived in enumerate(arrivals):
        for node, number, date in arrived:
            publish(landing, number, records=2, node=node, date=date)
        step(limits[at % len(limits)])
    while step(limits[-1]):
        pass

    read = [key for batch in batches for key in batch]
    assert sorted(read) == sorted({(node, BOOT, number) for arrived in arrivals for node, number, _ in arrived})


def test_what_is_published_later_is_not_for_a_run_that_takes_what_is_available(tmp_path: Path) -> None:
    """Trigger.AvailableNow ends at what there was when it began, in several batches where a limit is set."""
    for number in (1, 2, 3):
        publish(tmp_path, number)
    reader = StreamReader(Options({"path": str(tmp_path), "maxFilesPerTrigger": "2"}), StructType())
    limit = reader.getDefaultReadLimit()

    reader.prepareForTriggerAvailableNow()
    publish(tmp_path, 4)
    first = reader.latestOffset(reader.initialOffset(), limit)
    second = reader.latestOffset(first, limit)
    third = reader.latestOffset(second, limit)

    assert [offset["segments"]["broker-1"][BOOT] for offset in (first, second, third)] == ["1-2", "1-3", "1-3"]


def _files(reader: StreamReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[Key, str]]:
    partitions = reader.partitions(start, end)
    return [file for partition in partitions if isinstance(partition, Files) for file in partition.files]
