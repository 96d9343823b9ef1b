"""The tables as views of an in-memory DuckDB: checked, cut to the span and the nodes of the report.

DuckDB reads the files as it needs them and writes to a temporary folder what does not fit into memory. It runs in one
thread, so that sums of floating-point numbers, and with them the page, are the same each time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from attrs import define, field

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import ReportError
from kinmqtt_metrics.report.facts import OTHER_NODES
from kinmqtt_metrics.report.files import Checked, LeftOut, check, literal, no_rows, source, valid
from kinmqtt_metrics.report.progress import Progress
from kinmqtt_metrics.report.time_axis import Axis, Span

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Found = TypeVar("Found")

_FETCHED_ROWS: Final = 5000

_VIEWS: Final = tuple(table for table in t.TABLES if table is not t.RAW)
"""The other one is read file by file: see :mod:`.gaps`."""


def _connect() -> DuckDBPyConnection:
    import duckdb

    return duckdb.connect(
        config={
            "threads": 1,
            "temp_directory": os.path.join(tempfile.gettempdir(), f"kinmqtt-report-{os.getpid()}"),
            # A report needs no network.
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )


@define(slots=True, eq=False)
class Database:
    """The tables in a folder."""

    folder: Path
    progress: Progress
    nodes: frozenset[str] = frozenset()
    """Only these nodes; all if empty."""
    span: Span | None = None
    """Only these windows; all if ``None``."""
    left_out: dict[str, LeftOut] = field(factory=dict)
    """Files that can't be read, by path."""
    invalid: dict[str, int] = field(factory=dict)
    """Rows that are ignored, by table."""
    rows: dict[str, int] = field(factory=dict)
    """Rows in the span, by table."""
    _connection: DuckDBPyConnection = field(factory=_connect)
    _files: list[tuple[t.Table, list[Checked]]] | None = None

    def check_folder(self) -> None:
        """Raises :class:`ReportError` if there is nothing to read."""
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
                f"{self.folder} has no tables (no rates/batch-*.parquet and so on), {seen}: has the pipeline closed "
                "a window yet? kinmqtt-metrics pipeline run --help"
            )

    def whole_span(self) -> Span | None:
        """Returns the span from the first window to the end of the last; ``None`` if there is no window."""
        files = [file for _, of in self._checked() for file in of]
        starts = [file.start_us for file in files if file.start_us is not None]
        ends = [file.end_us for file in files if file.end_us is not None]
        return Span(min(starts) / 1e6, max(ends) / 1e6) if starts else None

    def _checked(self) -> list[tuple[t.Table, list[Checked]]]:
        if self._files is None:
            self._files = [(table, self._check(table)) for table in _VIEWS]
        return self._files

    def _check(self, table: t.Table) -> list[Checked]:
        good = []
        paths = table.files(self.folder)
        for done, path in enumerate(paths):
            self.progress.update(f"checking {table.name}, files", done, len(paths))
            file = self.read(table, path, partial(self.check_file, table, path))
            if file is not None:
                good.append(file)
        return good

    def check_file(self, table: t.Table, path: Path) -> Checked:
        """Read a whole file. Raises as :func:`.files.check`."""
        return check(self._connection, table, path)

    def read(self, table: t.Table, path: Path, read: Callable[[], Found]) -> Found | None:
        """Returns what ``read()`` returns; ``None`` if the file can't be read, which is noted in ``left_out``."""
        import duckdb

        try:
            return read()
        except (duckdb.Error, OSError, ValueError) as error:
            lines = str(error).replace(str(path), path.name).strip().splitlines()
            self.left_out[str(path)] = LeftOut(
                f"{table.name}/{path.name}", lines[0] if lines else type(error).__name__
            )
            return None

    def make_views(self) -> None:
        """Make a view of each table, with the rows that count."""
        for table, files in self._checked():
            self._connection.execute(f"CREATE OR REPLACE VIEW {table.name} AS {self._view(table, files)}")
            invalid = sum(file.invalid for file in files)
            if invalid and table is not t.USUAL:
                self.invalid[table.name] = invalid
            if files and table is not t.USUAL:
                [[rows]] = self._connection.execute(f"SELECT count(*) FROM {table.name}").fetchall()
                self.rows[table.name] = rows
        self._connection.execute(_text("tops"))

    def _view(self, table: t.Table, files: list[Checked]) -> str:
        by_columns: dict[str, list[Path]] = {}
        for file in files:
            by_columns.setdefault(file.columns, []).append(file.path)
        if not files:
            return no_rows(table)
        rows = " UNION ALL ".join(f"SELECT {columns} FROM {source(of)}" for columns, of in by_columns.items())
        conditions = [valid(table)]
        if self.span is not None and "window_start" in table.columns:
            first, end = (int(at_s * 1e6) for at_s in (self.span.start_s, self.span.end_s))
            conditions.append(f"window_start >= {first} AND window_start < {end}")
        if self.nodes and "node" in table.columns:
            conditions.append(f"node IN ({', '.join(map(literal, sorted(self.nodes)))})")
        return f"SELECT * FROM ({rows}) WHERE {' AND '.join(conditions)}"

    def make_macros(self, axis: Axis, others: list[str]) -> None:
        """Define ``step_of(window_start)``, and ``shown(node)``: :data:`OTHER_NODES` for these others."""
        known = f"[{', '.join(map(literal, others))}]::VARCHAR[]"
        self._connection.execute(
            "CREATE OR REPLACE MACRO step_of(start_us) AS CAST("
            f"floor((CAST(start_us AS DOUBLE) / 1e6 - {axis.first_s!r}::DOUBLE) / {axis.step_s!r}::DOUBLE) AS BIGINT)"
        )
        self._connection.execute(
            "CREATE OR REPLACE MACRO shown(node) AS "
            f"CASE WHEN list_contains({known}, node) THEN {literal(OTHER_NODES)} ELSE node END"
        )

    def query(self, name: str, **parameters: object) -> Iterator[dict[str, Any]]:
        """Run the query in ``sql/NAME.sql``; yields its rows by column."""
        cursor = self._connection.cursor()
        cursor.execute(_text(name), parameters or None)
        columns = [column[0] for column in cursor.description or ()]
        while rows := cursor.fetchmany(_FETCHED_ROWS):
            for row in rows:
                yield dict(zip(columns, row, strict=True))

    def close(self) -> None:
        """Give up the memory and the temporary folder."""
        self._connection.close()


def _text(name: str) -> str:
    return (resources.files("kinmqtt_metrics.report") / "sql" / f"{name}.sql").read_text("utf-8")
