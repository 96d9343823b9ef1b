"""Missing records: they are numbered, so a gap in the numbers shows."""

from __future__ import annotations

from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.intervals import Intervals
from kinmqtt_metrics.missing_records import Life, committed, sentences
from kinmqtt_metrics.report.database import Database


def missing(database: Database) -> list[str]:
    """Returns the sentences that the pipeline prints at the end of a run, for the report's nodes, at any time."""
    seen = committed(database.folder)
    if seen is None:
        seen = _in_raw(database)
    return list(sentences({life: of for life, of in seen.items() if not database.nodes or life[0] in database.nodes}))


def _in_raw(database: Database) -> dict[Life, Intervals]:
    """Read ``raw`` file by file: a file has few ranges, the whole table many records."""
    seen: dict[Life, Intervals] = {}
    paths = t.RAW.files(database.folder)
    for done, path in enumerate(paths):
        database.progress.update("reading raw, files", done, len(paths))
        for row in database.read(t.RAW, path, partial(_ranges, database, path)) or ():
            life = (row["node"], row["boot"])
            seen[life] = seen.get(life, Intervals()) | Intervals([(row["first"], row["last"])])
    return seen


def _ranges(database: Database, path: Path) -> list[dict[str, Any]]:
    database.check_file(t.RAW, path)
    return list(database.query("ranges", file=escape(str(path))))
