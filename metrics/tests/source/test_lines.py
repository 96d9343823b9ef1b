"""Lines: what Arrow reads at once, and what is read line by line."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kinmqtt_metrics.landing import SegmentName
from kinmqtt_metrics.record import FIELDS, KINDS
from kinmqtt_metrics.source import blocks
from kinmqtt_metrics.source import lines as module
from kinmqtt_metrics.source.lines import Gone, LineReader
from metrics_harness.segments import BOOT, event, line, write

KEY = ("broker-1", BOOT, 1)
NAME = SegmentName(*KEY)

text = st.text(st.characters(codec="utf-8"), max_size=8) | st.sampled_from(["2026-11-21", "{", '"labels":{}', "\\"])
long = st.integers(-(2**63), 2**63 - 1)
double = st.floats(allow_nan=False, allow_infinity=False)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "int": st.just(1),
    "bigint": long,
    "string": text,
    "double": double,
    "map<string,string>": st.dictionaries(text, text, max_size=3),
    "array<double>": st.lists(double, max_size=3),
    "array<bigint>": st.lists(long, max_size=3),
}
OTHERS = [name for name in FIELDS if name not in ("v", "t", "node", "boot", "seq", "kind")]
records = st.fixed_dictionaries(
    {"v": st.just(1), "t": long, "node": st.just("broker-1"), "boot": st.just(BOOT), "kind": st.sampled_from(KINDS)},
    optional={name: VALUES[FIELDS[name]] for name in OTHERS},
)
anything: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | long | st.integers(2**62, 2**70) | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=5,
)


@st.composite
def written(draw: st.DrawFn) -> list[bytes]:
    """Lines as the sink writes them; in some of them something is changed."""
    result = []
    ascii_only = draw(st.booleans())
    for seq, said in enumerate(draw(st.lists(records, max_size=6)), 1):
        record = {"seq": seq} | said
        change = draw(st.sampled_from(["nothing"] * 6 + ["value", "key", "bytes", "cut", "join", "seq", "twice"]))
        if change == "value":
            record[draw(st.sampled_from(list(FIELDS)))] = draw(anything)
        elif change == "key":
            record[draw(text)] = draw(anything)
        elif change == "seq":
            record["seq"] = draw(st.integers(-1, 7))
        whole = (
            json.dumps(record, ensure_ascii=ascii_only, separators=(",", ":")).encode("utf-8", "surrogatepass")
            + b"\n"
        )
        if change == "twice":
            whole = b'{"' + draw(st.sampled_from([b"t", b"labels", b"x"])) + b'":null,' + whole[1:]
        elif change == "bytes":
            at = draw(st.integers(0, len(whole)))
            whole = whole[:at] + draw(st.binary(max_size=2) | st.sampled_from([b"\n", b" ", b"\r"])) + whole[at:]
        elif change == "cut":
            whole = whole[: draw(st.integers(0, len(whole)))]
        elif change == "join":
            whole = whole[:-1]
        result.append(whole)
    return result


def _rows(tables: list[pa.Table]) -> list[dict[str, Any]]:
    return [row for table in tables for row in table.to_pylist()]


def _both(landing: Path, written: list[bytes], columns: list[str]) -> tuple[list[pa.Table], list[pa.Table]]:
    path = write(landing, NAME, written)
    reader = LineReader(str(landing), columns, rejected=True)
    fast = list(reader.read(KEY, str(path.relative_to(landing))))
    slow_reader = LineReader(str(landing), columns, rejected=True)
    slow_reader._at_once = lambda *_: None  # type: ignore[method-assign]
    return fast, list(slow_reader.read(KEY, str(path.relative_to(landing))))


odd_text = st.sampled_from(
    [
        "NaN",
        "-NaN",
        "Inf",
        "-Inf",
        "Infinity",
        "-Infinity",
        "nan",
        "1e400",
        "-1e-400",
        "1e99999999999",
        "0.1",
        "-0",
        "01",
    ]
    + [str(2**63), str(2**70), "9" * 5000, "-" + "9" * 400, "0." + "1" * 5000, "1.", "+1", "tru", "true", "null", ""]
    + [
        '"\\u0000"',
        '"\\ud800"',
        '"\\udc00"',
        '"\\ud83d\\ude00"',
        '"\\q"',
        '"\x01"',
        '"NaN"',
        '"labels\\":{}"',
        "[",
        "}",
    ]
    + ["[" * depth + "]" * depth for depth in (50, 900, 1100, 50_000)]
    + ['{"a":' * depth + "NaN" + "}" * depth for depth in (900, 50_000)]
    + ['{"labels":{}}', '{"a":1,"a":2}', '{"x":[Inf,{"":NaN}]}', '{"labels":{"a":[[[[]]]]}}']
)
odd_keys = st.sampled_from(
    ["x", "x", "y", "", "\\u0000", "t\\u0000", "\\ud800", "NaN", "\\u0074", "l\\u0061bels", *FIELDS]
)


@st.composite
def odd_lines(draw: st.DrawFn) -> list[bytes]:
    """Good records, some of which have more keys, with whatever may stand between a colon and a comma."""
    result = []
    for seq in range(1, draw(st.integers(1, 4)) + 1):
        more = draw(st.lists(st.tuples(odd_keys, odd_text), max_size=2))
        parts = "".join(f'"{key}":{value},' for key, value in more).encode()
        whole = line(event(seq))
        if draw(st.booleans()):
            result.append(b"{" + parts + whole[1:])
        else:
            result.append(whole[:-2] + b"," + parts[:-1] + b"}\n" if parts else whole)
    return result


@settings(max_examples=400)
@given(odd_lines(), st.sampled_from([list(FIELDS), ["seq"], ["labels"]]))
@example([b'{"x":-NaN,' + line(event(1))[1:]], list(FIELDS))
@example([b'{"x":' + b"[" * 50_000 + b"]" * 50_000 + b"," + line(event(1))[1:]], list(FIELDS))
@example([b'{"x":' + b"9" * 5000 + b"," + line(event(1))[1:]], ["labels"])
def test_what_stands_in_keys_that_nobody_knows_is_the_same_to_both(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], columns: list[str]
) -> None:
    """Numbers that JSON has not, or very long ones, doubled keys, half characters, brackets in brackets."""
    fast, slow = _both(tmp_path_factory.mktemp("landing"), written, columns)

    assert _rows(fast) == _rows(slow)


@pytest.mark.parametrize(
    "value", [b"NaN", b"-NaN", b"-Inf", b"1e400", b"9" * 5000, b"[" * 5000 + b"]" * 5000, b'1,"x":2', b'"\\ud800"']
)
def test_keys_that_nobody_knows_are_passed_over(tmp_path: Path, value: bytes) -> None:
    """Whatever stands in them, and also where another line of the block is bad."""
    lines = [b'{"x":' + value + b"," + line(event(1))[1:], b"bad\n", b'{"x":' + value + b"," + line(event(3))[1:]]
    path = write(tmp_path, NAME, lines)

    rows = _rows(list(LineReader(str(tmp_path), list(FIELDS), True).read(KEY, str(path.relative_to(tmp_path)))))

    assert [(row["kind"], row["seq"], row["labels"]) for row in rows] == [
        ("event", 1, [("protocol", "5.0")]),
        ("rejected", None, None),
        ("event", 3, [("protocol", "5.0")]),
    ]


@pytest.mark.parametrize("where", ["", "labels"])
def test_labels_in_brackets_are_no_labels(tmp_path: Path, where: str) -> None:
    """However many brackets: it is a line that is rejected, and no end of the query."""
    deep = b"[" * 50_000 + b"]" * 50_000
    bad = (
        line(event(2)).replace(b'"5.0"', deep)
        if where
        else b'{"labels":' + deep + line(event(2))[1:].replace(b'"labels":{"protocol":"5.0"}', b',"x":1')
    )
    path = write(tmp_path, NAME, [line(event(1)), bad, line(event(3))])

    rows = _rows(list(LineReader(str(tmp_path), list(FIELDS), True).read(KEY, str(path.relative_to(tmp_path)))))

    assert [row["seq"] for row in rows] == [1, None, 3]


def test_a_key_that_comes_again_in_a_long_line_takes_no_time(tmp_path: Path) -> None:
    """Of a hundred thousand keys each was counted through all the others: minutes for one line."""
    many = b",".join(b'"k%d":1' % number for number in range(100_000))
    path = write(tmp_path, NAME, [b'{"v":1,' + many + b"," + line(event(1))[1:]])

    rows = _rows(list(LineReader(str(tmp_path), list(FIELDS), True).read(KEY, str(path.relative_to(tmp_path)))))

    assert [row["reason"] for row in rows] == ["'v' is there twice"]


@settings(max_examples=300)
@given(written(), st.sampled_from([list(FIELDS), ["seq"], ["labels", "client"], ["number"]]))
@example([line(event(1, labels={})), line(event(2)), line({**event(3), "labels": None})], list(FIELDS))
@example([line(event(1, number=1e308)), b'{"v":1,"t":1,\n', b'"seq":2}{"v":1}\n'], list(FIELDS))
@example([line(event(1)).replace(b'"labels":', b'"labels": ')], list(FIELDS))
def test_both_ways_give_the_same_rows(
    tmp_path_factory: pytest.TempPathFactory, written: list[bytes], columns: list[str]
) -> None:
    """Whatever stands in a file, Arrow's way and the other say the same."""
    fast, slow = _both(tmp_path_factory.mktemp("landing"), written, columns)

    assert _rows(fast) == _rows(slow)
    assert all(table.schema == fast[0].schema for table in fast + slow)


@given(st.lists(records, min_size=1, max_size=5))
def test_what_the_sink_writes_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory, said: list[dict[str, Any]]
) -> None:
    """Good records are never read line by line, and come out as they were."""
    landing = tmp_path_factory.mktemp("landing")
    said = [{"seq": seq} | record for seq, record in enumerate(said, 1)]
    path = write(landing, NAME, map(line, said))
    reader = LineReader(str(landing), list(FIELDS), rejected=True)
    reader._line_by_line = None  # type: ignore[assignment]

    rows = _rows(list(reader.read(KEY, str(path.relative_to(landing)))))

    for row in rows:
        row["labels"] = None if row["labels"] is None else dict(row["labels"])
    assert [{k: v for k, v in row.items() if v is not None} for row in rows] == said


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (b'{"v":1,"t":5\n', "not JSON, or incomplete"),
        (b"\n", "not JSON, or incomplete"),
        (b"[1]\n", r"not a JSON object but \[1\]"),
        (b"\xff\n", "not UTF-8"),
        (b"[" * 100_000 + b"\n", "nested too deep"),
        (line(event(2, v=2)), "form 2: this version"),
        (line(event(2, v=0)), "form 0: this version"),
        (line(event(2, t="now")), "'t' is not bigint: 'now'"),
        (line(event(2, t=True)), "'t' is not bigint: True"),
        (line(event(2, t=None)), "'t' is missing"),
        (line(event(2, t=2**63)), "'t' is not bigint"),
        (line(event(2, number=float("nan"))), "'number' is not double: nan"),
        (line(event(2, unit=float("nan"))), "NaN is not a JSON number"),
        (line(event(2, bounds=[1, None])), "'bounds' is not array<double>"),
        (line(event(2, labels={"a": 1})), "'labels' is not map<string,string>"),
        (line(event(2, node="b")), "a line of 'b', boot"),
        (line(event(2, boot="0" * 16)), "a line of 'broker-1', boot '0000"),
        (line(event(2, kind="rejected")), "'kind' is 'rejected', and none of counter"),
        (line(event(0)), "'seq' is 0: it begins at 1"),
        (line(event(1)), "'seq' 1 has come before"),
        (line(event(2)).replace(b'"t":', b'"t":1,"t":'), "'t' is there twice"),
        (b'{"name":"\\ud800",' + line(event(2))[1:].replace(b'"name":"connected",', b""), "'name' is not string"),
    ],
)
def test_a_bad_line_says_why_and_the_others_are_read(tmp_path: Path, bad: bytes, why: str) -> None:
    """A line that can't be read is a row with its number, the reason and its beginning, between the good ones."""
    path = write(tmp_path, NAME, [line(event(1)), bad, line(event(3))])
    reader = LineReader(str(tmp_path), list(FIELDS), rejected=True)

    rows = _rows(list(reader.read(KEY, str(path.relative_to(tmp_path)))))

    assert [row["seq"] for row in rows] == [1, None, 3]
    rejected = {k: v for k, v in rows[1].items() if v is not None}
    assert re.search(why, rejected.pop("reason"))
    name = str(path.relative_to(tmp_path))
    start = bad.rstrip(b"\n").decode(errors="replace")[:500]
    assert rejected == {"kind": "rejected", "name": name, "value": 2, "payload": start}


def test_a_last_line_without_an_end_counts_if_it_is_whole(tmp_path: Path) -> None:
    """A line that lacks no more than its line feed says all it has to say."""
    path = write(tmp_path, NAME, [line(event(1)), line(event(2))[:-1]])

    rows = _rows(list(LineReader(str(tmp_path), ["seq"], True).read(KEY, str(path.relative_to(tmp_path)))))

    assert [row["seq"] for row in rows] == [1, 2]


@given(st.integers(200, 2000))
def test_a_file_is_read_in_blocks(tmp_path_factory: pytest.TempPathFactory, block_bytes: int) -> None:
    """Blocks of any size give the same rows; a line that fits in none is rejected; what comes twice is seen."""
    landing = tmp_path_factory.mktemp("landing")
    lines = [line(event(seq)) for seq in range(1, 30)]
    lines[10:10] = [line(event(5)), b"x" * 5000 + b"\n", b"{}\n"]
    path = write(landing, NAME, lines)
    reader = LineReader(str(landing), ["seq", "kind", "value"], rejected=True)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blocks, "BLOCK_BYTES", block_bytes)
        rows = _rows(list(reader.read(KEY, str(path.relative_to(landing)))))

    assert [row["seq"] for row in rows if row["seq"]] == list(range(1, 30))
    assert [row["value"] for row in rows if row["kind"] == "rejected"] == [11, 12, 13]


def test_files_that_can_not_be_read_are_told_of(tmp_path: Path) -> None:
    """A folder with the name of a segment, and an empty file, are rows of line 0."""
    (tmp_path / "date=2026-11-21" / str(NAME)).mkdir(parents=True)
    empty = write(tmp_path, SegmentName("broker-1", BOOT, 2), [])
    reader = LineReader(str(tmp_path), list(FIELDS), rejected=True)

    folder = _rows(list(reader.read(KEY, f"date=2026-11-21/{NAME}")))
    nothing = _rows(list(reader.read(("broker-1", BOOT, 2), str(empty.relative_to(tmp_path)))))

    assert [(row["value"], row["reason"]) for row in folder] == [(0, "a foreign file: it is a folder")]
    assert [(row["value"], row["reason"]) for row in nothing] == [(0, "the file is empty")]


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (os.mkfifo, "it is a FIFO"),
        (lambda path: os.mknod(path, stat.S_IFSOCK | 0o600), "it is a socket"),
        (lambda path: os.symlink("/dev/zero", path), "it is a device"),
        (lambda path: os.symlink("nowhere", path), "a broken link"),
        (lambda path: os.symlink(path, path), "a link that leads to itself"),
    ],
)
@pytest.mark.parametrize("rejected", [True, False])
def test_what_is_no_file_is_set_aside(tmp_path: Path, make: Callable[[Path], None], why: str, rejected: bool) -> None:
    """Nobody waits for a FIFO to speak, and no query ends: a row says what it is, where such rows are asked for."""
    day = tmp_path / "date=2026-11-21"
    day.mkdir()
    make(day / str(NAME))

    rows = _rows(list(LineReader(str(tmp_path), list(FIELDS), rejected).read(KEY, f"date=2026-11-21/{NAME}")))

    told = [(row["kind"], row["name"], row["value"], row["reason"]) for row in rows]
    assert told == [("rejected", f"date=2026-11-21/{NAME}", 0, f"a foreign file: {why}")] * rejected


def test_a_segment_that_is_gone_is_an_error_or_a_row(tmp_path: Path) -> None:
    """Who drops what is bad would not know that rows are missing, and gets an error; the others get a row."""
    gone = f"date=2026-11-21/{NAME}"

    with pytest.raises(Gone, match="restore it, or read with option rejected=rows"):
        list(LineReader(str(tmp_path), ["seq"], rejected=False).read(KEY, gone))
    rows = _rows(list(LineReader(str(tmp_path), list(FIELDS), rejected=True).read(KEY, gone)))

    assert [(row["kind"], row["name"], row["value"]) for row in rows] == [("rejected", gone, 0)]


@pytest.mark.parametrize("number", [errno.EACCES, errno.EIO, errno.ESTALE])
def test_a_file_that_can_not_be_read_right_now_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """As a row of rejected lines it would count as read, for good. The error names the file."""
    path = write(tmp_path, NAME, [line(event(1))])

    def refused(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(module, "open", refused, raising=False)
    reader = LineReader(str(tmp_path), list(FIELDS), True)

    with pytest.raises(OSError, match=re.escape(str(path))) as raised:
        list(reader.read(KEY, str(path.relative_to(tmp_path))))
    assert raised.value.errno == number
