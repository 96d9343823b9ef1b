"""Records of Kafka: those that are right at once, and each that is not, beside the same read one by one."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from kinmqtt_metrics.record import FIELDS, Record
from kinmqtt_metrics.source import values
from kinmqtt_metrics.source.values import Value, ValueReader
from metrics_harness.landing_data import Life, line


def rows(given: list[Value]) -> list[Record]:
    """What a reader makes of values, without what is null."""
    found = pa.concat_tables(ValueReader(list(FIELDS)).values(given)).to_pylist()
    return [{key: value for key, value in row.items() if value is not None} for row in found]


@pytest.fixture
def records() -> list[Record]:
    """Of two nodes, in turns."""
    random = Random(7)
    lives = [Life(node, f"{number:016x}", random) for number, node in enumerate(("a", "größe"))]
    return [record for _ in range(5) for life in lives for record in life.tick()]


@pytest.mark.parametrize("at_once", [1, 5000, 1 << 20])
def test_records_of_several_nodes_are_read_together(
    records: list[Record], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """In whatever pieces: they have the values that were sent, and come in their order."""
    monkeypatch.setattr(values, "_AT_ONCE_BYTES", at_once)
    given = [Value("t-0", offset, line(record).rstrip()) for offset, record in enumerate(records)]

    found = rows(given)

    assert [(row["node"], row["seq"], row["kind"], row.get("name")) for row in found] == [
        (record["node"], record["seq"], record["kind"], record.get("name")) for record in records
    ]
    assert [dict(row.get("labels", ())) for row in found] == [record.get("labels", {}) for record in records]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (None, "a record without a value"),
        (b"", "a line that is not JSON"),
        (b'{"v":1,"t":17', "a line that is not JSON, or incomplete"),
        (b"\xff", "a line that is not UTF-8"),
        (b'{"v":2}', "a line of form 2"),
        (b'{"v":1,"t":1,"node":"a","boot":"b","seq":0,"kind":"gauge"}', "'seq' is 0: it begins at 1"),
        (b'{"v":1,"t":1,"node":"a","boot":"b","seq":1,"kind":"odd"}', "'kind' is 'odd'"),
        (b'{"v":1}\n{"v":1}', "a line that is not JSON"),
    ],
)
def test_a_value_that_says_nothing_is_told_with_its_offset(
    records: list[Record], value: bytes | None, why: str
) -> None:
    """And those around it are read."""
    good = [Value("t-1", offset, line(record).rstrip()) for offset, record in enumerate(records[:4])]

    *found, rejected = rows([*good, Value("t-1", 99, value)])

    assert [row["seq"] for row in found] == [record["seq"] for record in records[:4]]
    assert (rejected["kind"], rejected["name"], rejected["value"]) == ("rejected", "t-1", 99)
    assert rejected["reason"].startswith(why)


def test_a_record_that_comes_again_is_a_row_again(records: list[Record]) -> None:
    """Who reads knows it by its number; a topic is no file, in which it would be a mistake."""
    value = line(records[0]).rstrip()

    assert [row["seq"] for row in rows([Value("t-0", 0, value), Value("t-0", 1, value)])] == [1, 1]
