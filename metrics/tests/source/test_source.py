"""The source under a real Spark."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.record import FIELDS
from metrics_harness.segments import BOOT, event, line, publish, write

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def _run(spark: SparkSession, landing: Path, folder: Path, **options: Any) -> list[list[tuple[Any, ...]]]:
    """All batches that a run with Trigger.AvailableNow makes: node, seq, kind and name of their rows, sorted."""
    batches: list[list[tuple[Any, ...]]] = []

    def keep(batch: DataFrame, number: int) -> None:
        rows = batch.select("node", "seq", "kind", "name").collect()
        batches.append(sorted((tuple(row) for row in rows), key=str))

    reader = spark.readStream.format("kinmqtt").options(**options)
    query = (
        reader.load(str(landing))
        .writeStream.foreachBatch(keep)
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    try:
        assert query.awaitTermination(120)
    finally:
        query.stop()
    return batches


def test_a_batch_read_has_every_field_of_every_record(spark: SparkSession, tmp_path: Path) -> None:
    """What the sink writes comes out as it was, with the schema of the contract."""
    full = event(1, number=1.5, bounds=[0.1, 1.0], counts=[1, 2, 3], sum=2.5, value=7, delta=3, bytes=9, topic="a/b")
    write(tmp_path, SegmentName("broker-1", BOOT, 1), [line(full), line(event(2))])

    read = spark.read.format("kinmqtt").load(str(tmp_path))

    assert {field.name: field.dataType.simpleString() for field in read.schema} == FIELDS
    rows = [{k: v for k, v in row.asDict().items() if v is not None} for row in read.orderBy("seq").collect()]
    assert rows == [full, event(2)]


def test_segments_are_rows_for_those_who_read_them_elsewhere(spark: SparkSession, tmp_path: Path) -> None:
    """``rows=segments`` names each segment once and opens none; a file that is none is told of by its path."""
    publish(tmp_path, 7)
    (tmp_path / "date=2026-11-21" / "torn.jsonl").write_bytes(b"{")

    read = spark.read.format("kinmqtt").option("rows", "segments").option("rejected", "rows").load(str(tmp_path))

    path = f"date=2026-11-21/{SegmentName('broker-1', BOOT, 7)}"
    assert sorted(map(tuple, read.collect())) == [
        ("", "date=2026-11-21/torn.jsonl", 0, "date=2026-11-21/torn.jsonl"),
        ("broker-1", BOOT, 7, path),
    ]
    assert [row.path for row in read.select("path").where("number = 7").collect()] == [path]


def test_a_stream_takes_each_segment_once_and_goes_on_from_its_checkpoint(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A segment that comes late, out of order, or as a copy below another date, is counted once."""
    landing = tmp_path / "landing"
    for number in (1, 3):
        publish(landing, number)
    first = _run(spark, landing, tmp_path)
    publish(landing, 2)
    publish(landing, 4, date="2026-11-22")
    publish(landing, 3, date="2026-11-22")

    second = _run(spark, landing, tmp_path)
    third = _run(spark, landing, tmp_path)

    assert [sorted(row[1] for row in batch) for batch in first] == [[*range(1, 11), *range(21, 31)]]
    assert [sorted(row[1] for row in batch) for batch in second] == [[*range(11, 21), *range(31, 41)]]
    assert third == []


@pytest.mark.parametrize("option", [{"maxFilesPerTrigger": 2}, {"maxBytesPerTrigger": 4000}])
def test_limits_divide_what_is_there_into_batches(
    spark: SparkSession, tmp_path: Path, option: dict[str, int]
) -> None:
    """With a limit the same rows come in more batches, none of them over it."""
    landing = tmp_path / "landing"
    sizes = {publish(landing, number).stat().st_size for number in range(1, 6)}

    batches = _run(spark, landing, tmp_path, **option)

    assert max(sizes) * 2 < 4000 < min(sizes) * 3
    assert [len(batch) for batch in batches] == [20, 20, 10]
    assert sorted(row[1] for batch in batches for row in batch) == list(range(1, 51))


def test_what_is_bad_comes_as_rows_and_ends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """Torn lines, newer forms and foreign files are told of once; the rest of the file is read."""
    landing = tmp_path / "landing"
    publish(landing, 1)
    write(landing, SegmentName("broker-1", BOOT, 2), [line(event(11)), b'{"v":1,"t":17', b"\n", line(event(12))])
    write(landing, SegmentName("broker-1", BOOT, 3), [line(event(13, v=2))])
    write(landing, SegmentName("broker-1", BOOT, 4), [])
    (landing / "date=2026-11-21" / "notes.jsonl").write_text("hello\n")

    batches = _run(spark, landing, tmp_path, rejected="rows")
    again = _run(spark, landing, tmp_path, rejected="rows")
    dropped = spark.read.format("kinmqtt").load(str(landing)).count()
    rows = spark.read.format("kinmqtt").option("rejected", "rows").load(str(landing)).where("kind = 'rejected'")

    assert [len(batch) for batch in batches] == [16]
    assert again == []
    assert dropped == 12
    told = {(Path(row.name).name, row.value, row.reason.split(":")[0], row.payload) for row in rows.collect()}
    assert told == {
        (f"broker-1-{BOOT}-00000002.jsonl", 2, "a line that is not JSON, or incomplete", '{"v":1,"t":17'),
        (f"broker-1-{BOOT}-00000003.jsonl", 1, "a line of form 2", line(event(13, v=2)).decode().strip()),
        (f"broker-1-{BOOT}-00000004.jsonl", 0, "the file is empty", ""),
        ("notes.jsonl", 0, "a foreign file", ""),
    }


def test_what_is_no_file_ends_nothing(spark: SparkSession, tmp_path: Path) -> None:
    """FIFOs, links to nowhere, folders named like segments, names that are no text: told once, the rest is read."""
    landing = tmp_path / "landing"
    publish(landing, 1)
    day = landing / "date=2026-11-21"
    os.mkfifo(day / str(SegmentName("broker-1", BOOT, 2)))
    os.symlink("nowhere", day / str(SegmentName("broker-1", BOOT, 3)))
    (day / str(SegmentName("broker-1", BOOT, 4))).mkdir()
    os.mkfifo(day / "other.jsonl")
    (Path(os.fsdecode(os.fsencode(day) + b"/\xff.jsonl"))).write_text("")
    os.mkdir(os.fsencode(landing) + b"/date=\xff")

    batches = _run(spark, landing, tmp_path, rejected="rows")
    again = _run(spark, landing, tmp_path, rejected="rows")
    segments = spark.read.format("kinmqtt").options(rows="segments", rejected="rows").load(str(landing)).collect()

    assert [sorted(row[1] or 0 for row in batch) for batch in batches] == [[0] * 6 + list(range(1, 11))]
    assert again == []
    assert len(segments) == 7


def test_only_the_columns_of_a_given_schema_are_read(spark: SparkSession, tmp_path: Path) -> None:
    """With a schema of its own a reader gets these columns, in that order."""
    publish(tmp_path, 1)

    read = spark.read.format("kinmqtt").schema("client string, seq bigint").load(str(tmp_path))

    assert [tuple(row) for row in read.orderBy("seq").limit(2).collect()] == [("c1", 1), ("c2", 2)]


def test_a_column_that_no_record_has_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """A wrong schema is an error that names the column and those that there are."""
    publish(tmp_path, 1)

    with pytest.raises(Exception, match="column qos: format\\('kinmqtt'\\) has v, t, node"):
        spark.read.format("kinmqtt").schema("qos int").load(str(tmp_path)).collect()


def test_nodes_and_a_first_date_can_be_chosen(spark: SparkSession, tmp_path: Path) -> None:
    """Options leave out files before they are opened."""
    publish(tmp_path, 1, node="a")
    publish(tmp_path, 1, node="b")
    publish(tmp_path, 1, node="c")
    publish(tmp_path, 2, node="a", date="2026-11-20")

    read = spark.read.format("kinmqtt").options(node="a, b", start="2026-11-21").load(str(tmp_path))

    assert sorted((row.node, row["count"]) for row in read.groupBy("node").count().collect()) == [
        ("a", 10),
        ("b", 10),
    ]


def test_a_folder_without_segments_has_no_rows(spark: SparkSession, tmp_path: Path) -> None:
    """A landing folder in which nothing is published yet is no error."""
    assert spark.read.format("kinmqtt").load(str(tmp_path)).count() == 0


def test_the_offsets_of_a_checkpoint_are_small_and_name_the_segments(spark: SparkSession, tmp_path: Path) -> None:
    """A checkpoint says by node, boot and ranges of numbers what was read."""
    landing = tmp_path / "landing"
    for number in (1, 2, 3, 5):
        publish(landing, number)

    _run(spark, landing, tmp_path)

    offset = (tmp_path / "checkpoint" / "offsets" / "0").read_text().splitlines()[-1]
    assert json.loads(offset) == {"form": 1, "segments": {"broker-1": {BOOT: "1-3,5"}}, "foreign": {}}
