"""Parquet files of the tables: which columns a report reads, and which of their rows are valid.

The pipeline writes valid files only. These are sanity checks for tables written by others: a file that is torn or of
another kind is left out, and rows with impossible times, counts or values are ignored.
"""

from __future__ import annotations

from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

from attrs import frozen

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.validity import LATEST_S, LONGEST_S, MOST_COUNTED, MOST_MEASURED

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

_WINDOW: Final = ("window_start", "window_s", "node")

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    t.RATES.name: (*_WINDOW, "name", "unit", "labels", "delta", "samples"),
    t.GAUGES.name: (*_WINDOW, "name", "samples", "min", "max", "mean", "sketch"),
    t.HISTOGRAMS.name: (*_WINDOW, "name", "unit", "bounds", "counts", "sum"),
    t.EVENTS.name: (*_WINDOW, "name", "reason", "events"),
    t.CONNECTIONS.name: (*_WINDOW, "reason", "connections", "sum_s", "max_s", "sketch"),
    t.RECONNECTS.name: (*_WINDOW, "connects", "clients", "client", "most", "storm"),
    t.TOP_CLIENTS.name: (*_WINDOW, "rank", "client", "messages", "bytes"),
    t.TOP_TOPICS.name: (*_WINDOW, "rank", "topic", "messages", "bytes"),
    t.DROPS.name: (*_WINDOW, "reason", "messages"),
    t.REFUSALS.name: (*_WINDOW, "name", "by", "reason", "refusals"),
    t.USUAL.name: _WINDOW,
    t.LATE.name: ("node", "kind", "records"),
    t.REJECTED.name: ("file", "line", "why", "text"),
    t.RAW.name: ("node", "boot", "seq"),
}
"""The columns that a report reads, by table."""

_WHOLE: Final = ("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT")
_TIMES: Final = ("TIMESTAMP WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S")
_NUMBERS: Final = (*_WHOLE, "DOUBLE", "FLOAT")

_ACCEPTED: Final[dict[str, tuple[str, ...]]] = {
    "timestamp": _TIMES,
    "int": _WHOLE,
    "bigint": _WHOLE,
    "double": _NUMBERS,
    "string": ("VARCHAR",),
    "boolean": ("BOOLEAN",),
    "binary": ("BLOB",),
    "map<string,string>": ("MAP(VARCHAR, VARCHAR)",),
    "array<double>": tuple(f"{number}[]" for number in _NUMBERS),
    "array<bigint>": tuple(f"{number}[]" for number in _WHOLE),
}
"""DuckDB's types that a column may have, by the type that the table names."""

_CASTS: Final = {
    "timestamp": "BIGINT",
    "int": "BIGINT",
    "bigint": "BIGINT",
    "double": "DOUBLE",
    "array<double>": "DOUBLE[]",
    "array<bigint>": "BIGINT[]",
}

NAMELESS: Final = "(no name)"
"""Stands for a node or a name that is null."""


@frozen(slots=True)
class LeftOut:
    """A file that is not in the report."""

    path: str
    """Relative to the folder of the tables."""
    why: str


@frozen(slots=True)
class Checked:
    """A readable file of a table."""

    path: Path
    columns: str
    """A SELECT list that gives the columns of the table their types; equal for files of the same kind."""
    invalid: int
    """Rows that are ignored."""
    start_us: int | None
    """Start of the first valid window, in microseconds; ``None`` if there is none."""
    end_us: int | None
    """End of the last valid window, in microseconds."""


def check(connection: DuckDBPyConnection, table: t.Table, path: Path) -> Checked:
    """Read a whole file.

    Raises ``duckdb.Error`` if the file is torn, and ``ValueError`` if a column is missing or has another type.
    """
    columns = _select_list(connection, table, path)
    names = ", ".join(map(quoted, COLUMNS[table.name]))
    # The hash makes DuckDB decode every value: a file that is torn in its middle fails here, not in a later query.
    window = valid_window(table)
    row = connection.execute(
        f"SELECT count(*) FILTER (NOT {valid(table)}), bit_xor(hash({names})), {_bounds(window)} "
        f"FROM (SELECT {columns} FROM {source([path])})"
    ).fetchone()
    assert row is not None
    return Checked(path, columns, row[0], row[2], row[3])


def _bounds(window: str) -> str:
    if not window:
        return "NULL, NULL"
    end = "window_start + coalesce(window_s, 0) * 1_000_000"
    return f"min(window_start) FILTER ({window}), max({end}) FILTER ({window})"


def _select_list(connection: DuckDBPyConnection, table: t.Table, path: Path) -> str:
    found = {
        name: kind for name, kind, *_ in connection.execute(f"DESCRIBE SELECT * FROM {source([path])}").fetchall()
    }
    wanted = COLUMNS[table.name]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}: is it a file of the table {table.name}?")
    columns = []
    for name in wanted:
        kind, has = table.columns[name], found[name]
        if has not in _ACCEPTED[kind]:
            raise ValueError(f"its column {name} is {has}, not {kind}")
        columns.append(f"{_typed(quoted(name), name, kind, has)} AS {quoted(name)}")
    return ", ".join(columns)


def _typed(column: str, name: str, kind: str, has: str) -> str:
    if kind == "timestamp":
        # In microseconds.
        at = column if has == _TIMES[0] else f"CAST({column} AS TIMESTAMP)"
        # Infinity has no microseconds.
        return f"CASE WHEN isfinite({at}) THEN epoch_us({at}) END"
    if kind in _CASTS:
        return f"CAST({column} AS {_CASTS[kind]})"
    return f"coalesce({column}, '{NAMELESS}')" if name in ("node", "name") else column


def source(paths: list[Path]) -> str:
    """Returns the table function that reads these files; folders such as ``node=3`` in a path add no column."""
    names = ", ".join(literal(escape(str(path))) for path in paths)
    return f"read_parquet([{names}], hive_partitioning = false)"


def no_rows(table: t.Table) -> str:
    """Returns the query that has the columns of a table and no row."""
    kinds = {name: _ACCEPTED[table.columns[name]][-1] for name in COLUMNS[table.name]}
    kinds |= {name: _CASTS[kind] for name in kinds if (kind := table.columns[name]) in _CASTS}
    return (
        f"SELECT {', '.join(f'CAST(NULL AS {kind}) AS {quoted(name)}' for name, kind in kinds.items())} WHERE false"
    )


def quoted(name: str) -> str:
    """Returns a name as SQL's identifier."""
    return '"' + name.replace('"', '""') + '"'


def literal(text: str) -> str:
    """Returns a text as SQL's string."""
    return "'" + text.replace("'", "''") + "'"


def valid_window(table: t.Table) -> str:
    """Returns the SQL condition for a window that is valid; empty for a table without windows."""
    if "window_start" not in table.columns:
        return ""
    start = f"coalesce(window_start BETWEEN 0 AND {LATEST_S * 1_000_000}, false)"
    return f"{start} AND coalesce(window_s BETWEEN 1 AND {LONGEST_S}, true)"


def valid(table: t.Table) -> str:
    """Returns the SQL condition for a row that is valid. Of all columns only ``window_start`` must not be null."""
    conditions = [valid_window(table)] if valid_window(table) else []
    counted = bool(conditions) or table is t.LATE
    for name in COLUMNS[table.name]:
        column = quoted(name)
        kind = table.columns[name]
        if kind == "bigint" and counted:
            conditions.append(f"coalesce({column} BETWEEN 0 AND {MOST_COUNTED}, true)")
        elif kind == "double":
            conditions.append(f"coalesce(abs({column}) <= {MOST_MEASURED!r}, true)")
    if table is t.HISTOGRAMS:
        conditions += _HISTOGRAM
    return f"({' AND '.join(conditions)})" if conditions else "true"


_HISTOGRAM: Final = (
    "coalesce(len(counts) = len(bounds) + 1, false)",
    f"len(list_filter(bounds, lambda x: NOT coalesce(abs(x) <= {MOST_MEASURED!r}, false))) = 0",
    f"len(list_filter(counts, lambda x: NOT coalesce(x BETWEEN 0 AND {MOST_COUNTED}, false))) = 0",
    "len(list_filter(range(2, len(bounds) + 1), lambda i: NOT bounds[i] > bounds[i - 1])) = 0",
)
"""One count more than bounds; bounds rise; no bound and no count is null."""
