"""The landing folder as a source of Spark's: in one go, and as a stream.

Of a stream's batches the offsets name the segments; a batch that is repeated reads the same ones. What they hold does
not change once they are published (:mod:`kinmqtt_metrics.landing`).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import pyarrow as pa
from attrs import frozen
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from kinmqtt_metrics.record import FIELDS
from kinmqtt_metrics.source.folder import File, Folder, oldest_first, packed, start_date
from kinmqtt_metrics.source.offsets import Key, Taken

BATCH_ROWS: Final = 65_536
"""Rows go to Spark in batches of about that size."""

SEGMENTS: Final = {"node": "string", "boot": "string", "number": "bigint", "path": "string"}
"""Columns of ``rows=segments``: a row is a segment, for those who read it in a task of their own. Its path is below
the landing folder; of a foreign file only that is there, in ``boot`` as in the offsets."""


class Options:
    """What a reader was told. Raises ``ValueError`` that names the option."""

    def __init__(self, options: Mapping[str, str]) -> None:
        path = options.get("path", "")
        if not path:
            raise ValueError("format('kinmqtt') needs the landing folder: .load('/var/lib/kinmqtt/landing')")
        parts = urlsplit(path)
        if parts.scheme not in ("", "file"):
            raise ValueError(f"path {path!r}: format('kinmqtt') reads mounted folders, not {parts.scheme}: storage")
        self.root = os.path.abspath(unquote(parts.path) if parts.scheme else path)
        self.rejected = options.get("rejected", "drop")
        if self.rejected not in ("drop", "rows"):
            raise ValueError(f"option rejected is {self.rejected!r}: it is 'drop' or 'rows'")
        self.rows = options.get("rows", "records")
        if self.rows not in ("records", "segments"):
            raise ValueError(f"option rows is {self.rows!r}: it is 'records' or 'segments'")
        self.fields = FIELDS if self.rows == "records" else SEGMENTS
        self.max_files = _positive(options, "maxFilesPerTrigger")
        self.max_bytes = _positive(options, "maxBytesPerTrigger")
        if self.max_files and self.max_bytes:
            raise ValueError("maxFilesPerTrigger and maxBytesPerTrigger: Spark takes one of them, not both")
        self.nodes = frozenset(filter(None, (node.strip() for node in options.get("node", "").split(","))))
        start = options.get("start", "")
        try:
            self.start = start_date(start) if start else ""
        except ValueError:
            raise ValueError(f"option start is {start!r}: it must be a date, UTC, such as 2026-11-21") from None

    def folder(self) -> Folder:
        """Raises ``ValueError`` for a path that is no folder."""
        if not os.path.isdir(self.root):
            raise ValueError(
                f"{self.root} is not a folder; path is the sink's landing folder, which contains date=…/"
            )
        return Folder(self.root, self.start, self.nodes, foreign=self.rejected == "rows")


def _positive(options: Mapping[str, str], name: str) -> int:
    text = options.get(name, "")
    if not text:
        return 0
    try:
        number = int(text)
    except ValueError:
        number = 0
    if number <= 0:
        raise ValueError(f"option {name} is {text!r}: it is a whole number above 0")
    return number


@frozen(slots=True)
class Files(InputPartition):
    """Some files that one task reads."""

    files: tuple[tuple[Key, str], ...]


def _partitions(files: Iterable[File]) -> list[Files]:
    return [
        Files(tuple((file.key, file.path) for file in partition))
        for partition in packed(list(files), os.cpu_count() or 1)
    ]


class _Reader:
    def __init__(self, options: Options, schema: StructType) -> None:
        self._columns = _columns(schema, options.fields)
        self._root = options.root
        self._rejected = options.rejected == "rows"
        self._segments = options.rows == "segments"

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of some files."""
        if not isinstance(partition, Files):
            # Spark makes a partition of its own where there is none.
            return
        if self._segments:
            yield _segments(partition, self._columns)
            return
        # Only tasks need it; whoever plans starts anew for each query.
        from kinmqtt_metrics.source.lines import LineReader

        lines = LineReader(self._root, self._columns, self._rejected)
        waiting: list[pa.Table] = []
        rows = 0
        for key, path in partition.files:
            for table in lines.read(key, path):
                waiting.append(table)
                rows += table.num_rows
                if rows >= BATCH_ROWS:
                    yield from _batches(waiting)
                    waiting, rows = [], 0
        if rows:
            yield from _batches(waiting)


def _batches(tables: list[pa.Table]) -> Iterator[pa.RecordBatch]:
    table = pa.concat_tables(tables).combine_chunks()
    yield from table.to_batches(BATCH_ROWS)


def _segments(partition: Files, columns: list[str]) -> pa.RecordBatch:
    # Names of files are bytes.
    said = [(*key, os.fsencode(path).decode(errors="replace")) for key, path in partition.files]
    values = dict(zip(SEGMENTS, zip(*said, strict=True), strict=True))
    kinds = {"string": pa.string(), "bigint": pa.int64()}
    return pa.RecordBatch.from_arrays([pa.array(values[name], kinds[SEGMENTS[name]]) for name in columns], columns)


def _columns(schema: StructType, fields: Mapping[str, str]) -> list[str]:
    """The columns asked for. Raises ``ValueError`` for those that are not there."""
    for field in schema:
        kind = field.dataType.simpleString()
        if fields.get(field.name) != kind:
            raise ValueError(
                f"column {field.name} {kind}: format('kinmqtt') has {fields[field.name]}"
                if field.name in fields
                else f"column {field.name}: format('kinmqtt') has {', '.join(fields)}"
            )
    return list(schema.fieldNames())


class BatchReader(_Reader, DataSourceReader):
    """``spark.read``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._folder = options.folder()

    def partitions(self) -> list[InputPartition]:
        """All segments that are published now."""
        return list(_partitions(self._folder.look_at(self._folder.paths().items())))


class StreamReader(_Reader, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """``spark.readStream``."""

    def __init__(self, options: Options, schema: StructType) -> None:
        super().__init__(options, schema)
        self._folder = options.folder()
        self._max_files = options.max_files
        self._max_bytes = options.max_bytes
        self._target: dict[Key, str] | None = None
        self._latest: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:
        """Nothing taken."""
        return Taken().to_json()

    def getDefaultReadLimit(self) -> ReadLimit:
        """What the options say."""
        if self._max_files:
            return ReadMaxFiles(self._max_files)
        if self._max_bytes:
            return ReadMaxBytes(self._max_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """What is published now is all that this run will read."""
        self._target = self._folder.paths()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """``start``, and what is new, the oldest first, as far as the limit goes; one file at least."""
        taken = Taken.from_json(start)
        paths = self._folder.paths() if self._target is None else self._target
        new = [(key, path) for key, path in paths.items() if key not in taken]
        if not new:
            self._latest = start
            return start
        everything = taken.and_also(key for key, _ in new).to_json()
        self._latest = everything
        if isinstance(limit, ReadAllAvailable):
            return everything
        chosen: list[Key] = []
        size_bytes = 0
        for file in oldest_first(self._folder.look_at(new)):
            size_bytes += file.size_bytes
            if chosen and isinstance(limit, ReadMaxBytes) and size_bytes > limit.max_bytes:
                break
            chosen.append(file.key)
            if isinstance(limit, ReadMaxFiles) and len(chosen) >= limit.max_files:
                break
        return taken.and_also(chosen).to_json()

    def reportLatestOffset(self) -> dict[str, Any] | None:
        """What was there when it was last looked."""
        return self._latest

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """What the end has and the start has not."""
        keys = list(Taken.from_json(end).beyond(Taken.from_json(start)))
        if not keys:
            return []
        paths = self._folder.paths()
        if any(key not in paths for key in keys):
            # A batch of a run with other options is repeated.
            paths = Folder(self._root).paths()
        return list(_partitions(self._folder.look_at((key, paths.get(key, "")) for key in keys)))

    def commit(self, end: dict[str, Any]) -> None:
        """Segments stay where they are: others read them too."""

    def stop(self) -> None:
        """There is nothing to close."""
