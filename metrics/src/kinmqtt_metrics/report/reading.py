"""Tables, read from their files: what lies in the time that was asked for, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from attrs import define, field, frozen

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import ReportError
from kinmqtt_metrics.report.fitting import fitting
from kinmqtt_metrics.report.progress import Progress
from kinmqtt_metrics.time_arguments import epoch_s
from kinmqtt_metrics.validity import LATEST_S, LONGEST_S

PIECE_ROWS: Final = 200_000
"""What is looked at together."""
_GROUPS_AT_ONCE: Final = 40

_TYPES: Final = {
    "timestamp": pa.timestamp("us"),
    "int": pa.int64(),
    "bigint": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "boolean": pa.bool_(),
    "map<string,string>": pa.map_(pa.string(), pa.string()),
    "array<double>": pa.list_(pa.float64()),
    "array<bigint>": pa.list_(pa.int64()),
}

NAMELESS: Final = "(no name)"

_BROKEN: Final = (pa.ArrowException, OSError, ValueError, OverflowError)
"""What a file raises that is torn, or of another kind."""


@frozen(slots=True)
class LeftOut:
    """A file that is not in the report."""

    path: str
    """Below the folder of the tables."""
    why: str


@frozen(slots=True)
class Span:
    """From when on and until when, seconds since the epoch."""

    start_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        """How long."""
        return self.end_s - self.start_s


@define(slots=True)
class Reader:
    """The tables in a folder."""

    folder: Path
    progress: Progress
    nodes: frozenset[str] = frozenset()
    """Only of these nodes; of all, where empty."""
    span: Span | None = None
    left_out: dict[str, LeftOut] = field(factory=dict)
    rows: dict[str, int] = field(factory=dict)
    """Of each table: how many were read, in the span and of the nodes."""
    odd: dict[str, int] = field(factory=dict)
    """Of each table: how many rows were set aside, as they can't be."""

    def check(self) -> None:
        """Raises :class:`ReportError` where there is nothing to read."""
        if not self.folder.exists():
            raise ReportError(
                f"{self.folder}: there is no such folder; --tables names the one that the pipeline writes to"
            )
        if not self.folder.is_dir():
            raise ReportError(f"{self.folder} is a file; --tables names the folder that the pipeline writes to")
        if not any(table.files(self.folder) for table in t.TABLES):
            found = sorted(path.name for path in self.folder.iterdir())[:5]
            seen = f"only {', '.join(found)}" if found else "nothing"
            raise ReportError(
                f"{self.folder} has no tables (no rates/batch-*.parquet and so on), {seen}: has the pipeline "
                "closed a "
                "window yet? kinmqtt-metrics pipeline run --help"
            )

    def whole_span(self, of: Sequence[t.Table]) -> Span | None:
        """From the first window to the end of the last, as the files' footers say; nothing without a window."""
        first: float | None = None
        last: float | None = None
        files = [(table, path) for table in of for path in table.files(self.folder)]
        for done, (table, path) in enumerate(files):
            self.progress.tell("looking for the time span, files", done, len(files))
            try:
                for start_s, end_s in _windows_of(table, path):
                    first = start_s if first is None else min(first, start_s)
                    last = end_s if last is None else max(last, end_s)
            except _BROKEN as error:
                self._leave_out(table, path, error)
        return None if first is None or last is None else Span(first, last)

    def starts(self, table: t.Table, most_files: int = 200) -> list[int]:
        """Some of the windows' starts, as they are there; microseconds, rising."""
        found: set[int] = set()
        for piece in self.pieces(table, ("window_start",), count=False, files=table.files(self.folder)[:most_files]):
            found.update(pc.unique(piece["window_start"]).to_pylist())
            if len(found) > 500:
                break
        return sorted(found)

    def pieces(
        self, table: t.Table, columns: Iterable[str], *, count: bool = True, files: Sequence[Path] | None = None
    ) -> Iterator[pa.Table]:
        """Rows of a table; ``window_start`` and other times as whole microseconds since the epoch."""
        wanted = list(columns)
        checked = [name for name in ("window_start", "window_s", "node") if name in table.columns]
        needed = list(dict.fromkeys([*wanted, *checked]))
        paths = table.files(self.folder) if files is None else files
        waiting: list[pa.Table] = []
        rows = 0
        for done, path in enumerate(paths):
            self.progress.tell(f"reading {table.name}, files", done, len(paths))
            if str(path) in self.left_out:
                continue
            for piece in self._of_file(table, path, needed, count):
                if count:
                    self.rows[table.name] = self.rows.get(table.name, 0) + piece.num_rows
                waiting.append(piece.select(wanted))
                rows += piece.num_rows
                if rows >= PIECE_ROWS:
                    yield pa.concat_tables(waiting)
                    waiting, rows = [], 0
        if rows:
            yield pa.concat_tables(waiting)

    def _of_file(self, table: t.Table, path: Path, columns: list[str], count: bool) -> Iterator[pa.Table]:
        told = False
        try:
            with pq.ParquetFile(path) as file:
                missing = [column for column in columns if column not in file.schema_arrow.names]
                if missing:
                    raise ValueError(
                        f"it has no column {', '.join(missing)}: is it a file of the table {table.name}?"
                    )
                whole = file.metadata.num_rows <= PIECE_ROWS
                # A small file is read as a whole before anything of it counts.
                batches: Iterable[Any] = (
                    [file.read(columns=columns)]
                    if whole
                    else (pa.Table.from_batches([b]) for b in file.iter_batches(65_536, columns=columns))
                )
                for batch in batches:
                    batch.validate(full=True)
                    piece = _typed(table, batch.select(columns))
                    fits = fitting(table, piece)
                    odd = piece.num_rows - fits.true_count
                    if odd:
                        piece = piece.filter(fits)
                        if count:
                            self.odd[table.name] = self.odd.get(table.name, 0) + odd
                    piece = self._chosen(piece)
                    told = told or piece.num_rows > 0
                    yield piece
        except _BROKEN as error:
            self._leave_out(table, path, error, "only its beginning was read: " if told else "")

    def _chosen(self, piece: pa.Table) -> pa.Table:
        names = piece.column_names
        chosen = None
        if self.span is not None and "window_start" in names:
            start = piece["window_start"]
            first, last = (int(moment_s * 1e6) for moment_s in (self.span.start_s, self.span.end_s))
            chosen = pc.and_(pc.greater_equal(start, first), pc.less(start, last))
        if self.nodes and "node" in names:
            here = pc.is_in(piece["node"], value_set=pa.array(sorted(self.nodes), pa.string()))
            chosen = here if chosen is None else pc.and_(chosen, here)
        return piece if chosen is None else piece.filter(chosen)

    def _leave_out(self, table: t.Table, path: Path, error: BaseException, before: str = "") -> None:
        why = str(error).strip().splitlines()
        self.left_out[str(path)] = LeftOut(
            f"{table.name}/{path.name}", before + (why[0] if why else type(error).__name__)
        )


def summed(pieces: Iterable[pa.Table], keys: Sequence[str], how: Mapping[str, str]) -> pa.Table | None:
    """Rows with the same keys made one; ``how`` says of each other column ``sum``, ``min`` or ``max``."""
    parts: list[pa.Table] = []
    for piece in pieces:
        parts.append(_group(piece, keys, how))
        if len(parts) >= _GROUPS_AT_ONCE:
            parts = [_group(pa.concat_tables(parts), keys, how)]
    if not parts:
        return None
    return _group(pa.concat_tables(parts), keys, how) if len(parts) > 1 else parts[0]


def _group(piece: pa.Table, keys: Sequence[str], how: Mapping[str, str]) -> pa.Table:
    grouped = piece.group_by(list(keys), use_threads=False).aggregate(list(how.items()))
    names = {f"{column}_{function}": column for column, function in how.items()}
    return grouped.rename_columns([names.get(column, column) for column in grouped.column_names]).select(
        [*keys, *how]
    )


def _typed(table: t.Table, piece: pa.Table) -> pa.Table:
    """Each column in the type that the table says; times as whole microseconds."""
    for index, column in enumerate(piece.column_names):
        spark = table.columns[column]
        values = piece[column]
        if spark == "timestamp":
            if not pa.types.is_timestamp(values.type):
                raise ValueError(f"its column {column} is {values.type}, no time")
            values = values.cast(pa.timestamp("us", tz=values.type.tz), safe=False).cast(pa.int64())
        elif spark in _TYPES and values.type != _TYPES[spark]:
            try:
                values = values.cast(_TYPES[spark])
            except pa.ArrowException as error:
                raise ValueError(f"its column {column} is {values.type}, not {spark}") from error
        if column in ("node", "name"):
            # Whoever writes lines by hand may leave them out.
            values = pc.fill_null(values, NAMELESS)
        piece = piece.set_column(index, column, values)
    return piece


def _windows_of(table: t.Table, path: Path) -> Iterator[tuple[float, float]]:
    """First and last window of each row group, from the footer where that says so."""
    with pq.ParquetFile(path) as file:
        names = file.schema_arrow.names
        if "window_start" not in names or "window_s" not in names:
            raise ValueError("it has no columns window_start and window_s: is it a file of this table?")
        leaves = {file.metadata.schema.column(i).path: i for i in range(file.metadata.num_columns)}
        for group in range(file.metadata.num_row_groups):
            about = file.metadata.row_group(group)
            if not about.num_rows:
                continue
            told = _told_of(about, leaves["window_start"], leaves["window_s"])
            if told is not None:
                yield told
                continue
            read = file.read_row_group(group, columns=["window_start", "window_s"])
            start = read["window_start"]
            start = start.cast(pa.timestamp("us", tz=getattr(start.type, "tz", None)), safe=False).cast(pa.int64())
            rows = pa.table({"window_start": start, "window_s": read["window_s"]})
            rows = rows.filter(fitting(table, rows))
            low, high = pc.min_max(rows["window_start"]).values()
            if low.is_valid:
                yield low.as_py() / 1e6, high.as_py() / 1e6 + (pc.max(rows["window_s"]).as_py() or 0)


def _told_of(group: Any, start_leaf: int, length_leaf: int) -> tuple[float, float] | None:
    """What the footer says of a group, if it does, and if that can be."""
    try:
        start, length = (group.column(leaf).statistics for leaf in (start_leaf, length_leaf))
        if start is None or length is None or not (start.has_min_max and length.has_min_max):
            return None
        first, last, shortest, longest = start.min, start.max, length.min, length.max
    except (ValueError, OverflowError):
        # A year beyond 9999.
        return None
    if not isinstance(longest, int):
        raise ValueError(f"its column window_s is {type(longest).__name__}, not int")
    if not (isinstance(first, datetime) and isinstance(last, datetime)):
        return None
    low_s, high_s = epoch_s(first), epoch_s(last)
    fine = low_s >= 0 and high_s <= LATEST_S and shortest >= 1 and longest <= LONGEST_S
    return (low_s, high_s + longest) if fine else None
