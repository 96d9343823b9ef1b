"""The lines of a segment as Arrow tables, and what is wrong with those that are none.

Arrow reads a block of lines at once where all of them are in order; a block in which anything is not is read line by
line. Both ways give the same rows. A good line is a JSON object whose keys, as far as they are asked for, have the
types of :data:`kinmqtt_metrics.record.FIELDS`; keys that are not asked for are passed over, whatever stands in them:
numbers that JSON has not (``NaN``, ``Infinity``, ``Inf``) or that are very long, a key that came before, what is deep
in brackets.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from kinmqtt_metrics.intervals import Intervals, Numbers
from kinmqtt_metrics.record import FIELDS, FORMAT, KINDS, Record
from kinmqtt_metrics.source import blocks
from kinmqtt_metrics.source.json_values import CHECKS, DECODER, JsonObject, brief, labels_of
from kinmqtt_metrics.source.offsets import Key

REJECTED: Final = "rejected"
"""``kind`` of a row that tells of a line, or of a file, that could not be read."""


_TYPES: Final[dict[str, pa.DataType]] = {
    "int": pa.int32(),
    "bigint": pa.int64(),
    "string": pa.string(),
    "double": pa.float64(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<double>": pa.list_(pa.field("element", pa.float64())),
    "array<bigint>": pa.list_(pa.field("element", pa.int64())),
}

_MAP: Final = _TYPES["map<string,string>"]
_KINDS: Final = pa.array(KINDS)

SCHEMA: Final = pa.schema([(name, _TYPES[kind]) for name, kind in FIELDS.items()])

_NEEDED: Final = ("v", "t", "node", "boot", "seq", "kind")
_DOUBLES: Final = ("number", "sum")
_LISTS: Final = ("bounds", "counts")


_ARROW: Final = pj.ReadOptions(use_threads=False, block_size=1024 * 1024)
"""Tasks are Spark's threads. What is parsed at a time fits into a cache; a longer line is read the other way."""

# Both find every place where labels could be, with their text where it is plain to see. The first is the faster one.
_LABELS: Final = (
    re.compile(rb'labels"(?::(\{[^{}]*\}))?'),
    re.compile(rb'labels"(?::(\{(?:[^"{}]|"(?:[^"\\]|\\.)*")*\}))?'),
)
_LABELS_KEPT: Final = 65_536
"""So many different texts of labels are kept with what they say."""


_KINDS_OF_FILES: Final = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFBLK: "a device",
    stat.S_IFCHR: "a device",
}


class Gone(Exception):
    """A segment that was there when the batch was planned, and is not any more."""


def schema_of(columns: list[str]) -> pa.Schema:
    """The schema of some of the columns, in the order asked for."""
    return pa.schema([SCHEMA.field(name) for name in columns])


class LineReader:
    """Reads segments; ``columns`` are those that the rows shall have."""

    def __init__(self, root: str, columns: list[str], rejected: bool) -> None:
        self._root = root
        self.schema = schema_of(columns)
        self._rejected = rejected
        asked = dict.fromkeys((*_NEEDED, *columns))
        self._fields = {name: FIELDS[name] for name in FIELDS if name in asked}
        # Of labels Arrow says in which rows they are; their text is looked at here, as no type of Arrow's reader has
        # keys that nobody knows beforehand.
        fields = [pa.field(n, pa.struct([]) if n == "labels" else SCHEMA.field(n).type) for n in self._fields]
        self._options = pj.ParseOptions(explicit_schema=pa.schema(fields), unexpected_field_behavior="ignore")
        self._with_labels = "labels" in self._fields
        self._labels: dict[bytes, list[tuple[str, str]]] = {}

    def read(self, key: Key, path: str) -> Iterator[pa.Table]:
        """The rows of a file. Raises :class:`Gone` where rejected lines are not asked for, or nobody would know.

        Raises ``OSError`` where the file can't be read right now: the batch is not over, and reads it later.
        """
        if not key[0]:
            yield from self._no_file(path or key[1], "a foreign file: its name is not that of a segment")
            return
        try:
            if not path:
                raise FileNotFoundError
            whole_path = os.path.join(self._root, path)
            # Looked at before it is opened: whoever opens a FIFO waits for a writer, for ever.
            mode = os.stat(whole_path).st_mode
            if not stat.S_ISREG(mode):
                kind = _KINDS_OF_FILES.get(stat.S_IFMT(mode), "none")
                yield from self._no_file(path, f"a foreign file: it is {kind}")
                return
            with open(whole_path, "rb") as file:
                yield from self._read(file, key, path)
        except FileNotFoundError:
            if path and os.path.islink(os.path.join(self._root, path)):
                yield from self._no_file(path, "a foreign file: a broken link")
                return
            name = path or "/".join(map(str, key))
            why = "the segment is gone: it was published when the batch was planned, or in an earlier run"
            if not self._rejected:
                raise Gone(
                    f"{os.path.join(self._root, name)}: {why}; restore it, or read with option rejected=rows, "
                    "which returns a row for it and continues"
                ) from None
            yield from self._no_file(name, why)
        except OSError as error:
            if error.errno == errno.ELOOP:
                yield from self._no_file(path, "a foreign file: a link that leads to itself")
                return
            # As one that is rejected it would be taken, and never looked at again.
            why = f"{error.strerror or error}; no record of it is lost: make it readable, and begin again"
            raise OSError(error.errno, why, os.path.join(self._root, path)) from error

    def _read(self, file: BinaryIO, key: Key, path: str) -> Iterator[pa.Table]:
        seen = Intervals()
        number = 1
        for block, long in blocks.of_file(file):
            if long:
                why = f"a line of more than {blocks.BLOCK_BYTES} bytes"
                yield from self._rows([self._no_line(path, number, why, block)])
                number += 1
                continue
            ends = blocks.line_ends(block)
            table = self._at_once(block, ends, key, seen)
            if table is not None:
                yield table
            else:
                yield from self._line_by_line(block, key, path, number, seen)
            number += len(ends)
        if number == 1 and not file.tell():
            yield from self._no_file(path, "the file is empty")

    # ---- at once -----------------------------------------------------------------------------------------------

    def _at_once(self, block: bytes, ends: Numbers, key: Key, seen: Intervals) -> pa.Table | None:
        """The block's rows, or nothing where any line may be bad, or where this way can't tell."""
        table = self._sound(block, ends)
        if table is None or not self._in_order(table, key, seen):
            return None
        rows = self._rows_of(block, table)
        if rows is not None:
            seen.extend(table.column("seq").to_numpy())
        return rows

    def _sound(self, block: bytes, ends: Numbers) -> pa.Table | None:
        """What the lines of a block say, if all of them can be right, of whichever node they are."""
        if not blocks.are_objects(block, ends):
            return None
        try:
            if not block.isascii():
                block.decode()
            table = self._parsed(block)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        return table if table.num_rows == len(ends) and self._is_sound(table) else None

    def _rows_of(self, block: bytes, table: pa.Table) -> pa.Table | None:
        columns = {name: table.column(name) for name in self.schema.names if name != "labels"}
        if self._with_labels:
            labels = self._labels_of(block, table.column("labels"))
            if labels is None:
                return None
            columns["labels"] = labels
        return pa.table([columns[name] for name in self.schema.names], schema=self.schema)

    def _parsed(self, block: bytes) -> pa.Table:
        return pj.read_json(pa.BufferReader(block), read_options=_ARROW, parse_options=self._options)

    def _is_sound(self, table: pa.Table) -> bool:
        if any(table.column(name).null_count for name in _NEEDED):
            return False
        if not pc.all(pc.equal(table.column("v"), FORMAT)).as_py():
            return False
        if not pc.all(pc.is_in(table.column("kind"), value_set=_KINDS)).as_py():
            return False
        for name in _DOUBLES:
            if name in self._fields and pc.any(pc.invert(pc.is_finite(table.column(name)))).as_py():
                return False
        for name in _LISTS:
            if name in self._fields:
                values = pc.list_flatten(table.column(name))
                if values.null_count or (name == "bounds" and pc.any(pc.invert(pc.is_finite(values))).as_py()):
                    return False
        return bool(pc.min(table.column("seq")).as_py() >= 1)

    def _in_order(self, table: pa.Table, key: Key, seen: Intervals) -> bool:
        """Whether all lines are of the file's node and life, each behind the one before."""
        node, boot, _ = key
        for name, only in (("node", node), ("boot", boot)):
            if not pc.all(pc.equal(table.column(name), only)).as_py():
                return False
        numbers = table.column("seq").combine_chunks()
        rises = pc.all(pc.greater(numbers[1:], numbers[:-1])).as_py()
        return bool(numbers[0].as_py() > seen.highest and rises in (True, None))

    def _labels_of(self, block: bytes, where: pa.ChunkedArray) -> pa.Array | None:
        """The labels of a block; nothing where they are not to be told from the rest by their text."""
        present = len(where) - where.null_count
        for pattern in _LABELS:
            texts = pattern.findall(block)
            if len(texts) != present:
                return None
            # They are few and come again and again.
            encoded = pa.array(texts, pa.binary()).dictionary_encode()
            try:
                maps = [self._labels.get(text) or self._label(text) for text in encoded.dictionary.to_pylist()]
            except (ValueError, TypeError, RecursionError):
                continue
            indices = encoded.indices
            if present < len(where):
                valid = where.is_valid().combine_chunks()
                before = pc.subtract(pc.cumulative_sum(valid.cast(pa.int32())), 1)
                indices = indices.take(pc.if_else(valid, before, pa.scalar(None, pa.int32())))
            return pa.array(maps, _MAP).take(indices)
        return None

    def _label(self, text: bytes) -> list[tuple[str, str]]:
        """What a text of labels says; empty text, or text that is cut short, is none of JSON's."""
        if len(self._labels) >= _LABELS_KEPT:
            self._labels.clear()
        labels = self._labels[text] = list(labels_of(DECODER.decode(text.decode())).items())
        return labels

    # ---- line by line ------------------------------------------------------------------------------------------

    def _line_by_line(self, block: bytes, key: Key, path: str, number: int, seen: Intervals) -> Iterator[pa.Table]:
        lines = block.split(b"\n")
        if not lines[-1]:
            lines.pop()
        rows: list[Record] = []
        for at, line in enumerate(lines, number):
            record = self.record(line, key, seen)
            if isinstance(record, str):
                if self._rejected:
                    rows.append(self._no_line(path, at, record, line))
            else:
                rows.append(record)
        yield from self._rows(rows)

    def record(self, line: bytes, key: Key, seen: Intervals) -> Record | str:
        """What a line of a file says, or why it says nothing."""
        record = self.said(line)
        if isinstance(record, str):
            return record
        node, boot, _ = key
        if (record["node"], record["boot"]) != (node, boot):
            said_by = f"{brief(record['node'])}, boot {brief(record['boot'])}"
            return f"a line of {said_by} in a file of {brief(node)}, boot {boot!r}"
        if not seen.add(record["seq"]):
            return f"'seq' {record['seq']} has come before in this file"
        return record

    def said(self, line: bytes) -> Record | str:
        """What a line says, of whichever node it is, or why it says nothing."""
        try:
            said = DECODER.decode(line.decode())
        except UnicodeDecodeError:
            return "a line that is not UTF-8"
        except (RecursionError, ValueError) as error:
            odd = self._odd(line, error)
            if odd is None:
                if isinstance(error, RecursionError):
                    return "a line that is nested too deep"
                return f"a line that is not JSON, or incomplete: {error}"
            said = odd
        if not isinstance(said, JsonObject):
            return f"a line that is not a JSON object but {brief(said)}"
        form = said.get("v")
        if isinstance(form, int) and form > FORMAT:
            return f"a line of form {brief(form)}: this version of kinmqtt-metrics reads {FORMAT}"
        for name in _NEEDED:
            if said.get(name) is None:
                return f"{name!r} is missing"
        record: Record = {}
        for name, kind in self._fields.items():
            if name in said.twice:
                return f"{name!r} is there twice"
            value = said.get(name)
            if value is not None:
                try:
                    record[name] = CHECKS[kind](value)
                except (TypeError, OverflowError, UnicodeEncodeError):
                    return f"{name!r} is not {kind}: {brief(value)}"
        if form != FORMAT:
            return f"a line of form {form}: this version of kinmqtt-metrics reads {FORMAT}"
        if record["kind"] not in KINDS:
            return f"'kind' is {brief(record['kind'])}, and none of {', '.join(KINDS)}"
        if record["seq"] < 1:
            return f"'seq' is {record['seq']}: it begins at 1"
        return record

    def _odd(self, line: bytes, error: Exception) -> JsonObject | None:
        """What a line says that Arrow can read and Python can't: of ``NaN``, long numbers or deep nesting."""
        if isinstance(error, json.JSONDecodeError) and b"Inf" not in line and b"NaN" not in line:
            return None
        if not (line.startswith(b"{") and line.endswith(b"}")):
            return None
        try:
            table = self._parsed(line)
            if table.num_rows != 1:
                return None
            said = JsonObject([(name, value) for name, value in table.to_pylist()[0].items() if value is not None])
            if "labels" in said:
                labels = self._labels_of(line, table.column("labels"))
                if labels is None:
                    return None
                said["labels"] = JsonObject(labels.to_pylist()[0])
        except (pa.ArrowInvalid, UnicodeDecodeError):
            return None
        return said

    # ---- rows --------------------------------------------------------------------------------------------------

    def _rows(self, rows: list[Record]) -> Iterator[pa.Table]:
        if rows:
            columns = []
            for field in self.schema:
                values: list[Any] = [row.get(field.name) for row in rows]
                if pa.types.is_map(field.type):
                    values = [None if value is None else list(value.items()) for value in values]
                columns.append(pa.array(values, field.type))
            yield pa.table(columns, schema=self.schema)

    def _no_file(self, path: str, why: str) -> Iterator[pa.Table]:
        if self._rejected:
            yield from self._rows([self._no_line(path, 0, why, b"")])

    def _no_line(self, path: str, number: int, why: str, line: bytes) -> Record:
        # A character has four bytes at the most.
        text = line[: blocks.TEXT_LIMIT * 4].decode(errors="replace")[: blocks.TEXT_LIMIT]
        name = os.fsencode(path).decode(errors="replace")
        return {"kind": REJECTED, "name": name, "value": number, "reason": why, "payload": text}
