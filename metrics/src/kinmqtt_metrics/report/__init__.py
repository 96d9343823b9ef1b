"""``kinmqtt-metrics report``: one HTML page from the tables, with plots and text, for readers without Spark.

It needs the extra ``report`` (DuckDB, Jinja2, matplotlib, datasketches), which is imported when a report is made.
"""

from __future__ import annotations

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinmqtt_metrics.durable import replace_text
from kinmqtt_metrics.errors import CommandError, ReportError
from kinmqtt_metrics.table_arguments import local, tables_at

if TYPE_CHECKING:
    from kinmqtt_metrics.report.database import Database
    from kinmqtt_metrics.report.facts import Facts
    from kinmqtt_metrics.report.time_axis import Span

__all__ = ["ReportError", "add_parser", "make", "run"]

_PACKAGES: Final = ("datasketches", "duckdb", "jinja2", "matplotlib")

_DESCRIPTION: Final = """\
Makes one HTML page from the tables, with plots, sums and text. The page needs no other file and no network. The
pipeline may run meanwhile.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``kinmqtt-metrics report``."""
    parser = subparsers.add_parser("report", help="make one HTML page from the tables", description=_DESCRIPTION)
    parser.add_argument(
        "--tables", type=tables_at, required=True, metavar="FOLDER", help="the pipeline's folder of tables"
    )
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page, such as report.html")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="also write each plot as a PNG file")
    when = "a time (2026-11-21T14:00, UTC without a zone) or a duration before the end of the newest window (24h, 7d)"
    parser.add_argument("--since", metavar="TIME", help=f"only windows from this time on: {when}")
    parser.add_argument("--until", metavar="TIME", help="only windows that begin before this time")
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="only this node; repeatable")
    parser.add_argument("--title", default="MQTT brokers", help="the page's title (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the report. Returns the exit status."""
    try:
        facts = make(
            local(arguments.tables),
            arguments.out,
            png=arguments.png,
            since=arguments.since,
            until=arguments.until,
            nodes=arguments.node,
            title=arguments.title,
        )
    except CommandError as error:
        print(f"kinmqtt-metrics report: {error}", file=sys.stderr)
        return 1
    for left in facts.left_out:
        print(f"kinmqtt-metrics report: left out {left.path}: {left.why}", file=sys.stderr)
    if facts.invalid:
        from kinmqtt_metrics.report.narrative import invalid_rows

        print(f"kinmqtt-metrics report: left out {invalid_rows(facts.invalid)}", file=sys.stderr)
    print(arguments.out)
    return 0


def make(
    tables: Path,
    out: Path,
    *,
    png: Path | None = None,
    since: str | None = None,
    until: str | None = None,
    nodes: list[str] | None = None,
    title: str = "MQTT brokers",
    made_at: datetime | None = None,
) -> Facts:
    """Read the tables and write the page. Raises :class:`ReportError`."""
    _need_packages()
    from kinmqtt_metrics.report.database import Database
    from kinmqtt_metrics.report.narrative import Narrative
    from kinmqtt_metrics.report.plots import Painter
    from kinmqtt_metrics.report.progress import Progress
    from kinmqtt_metrics.report.rendering import render

    database = Database(tables, Progress(sys.stderr), frozenset(nodes or ()))
    try:
        facts = _facts(database, since, until)
    finally:
        database.close()
    painter = Painter(facts)
    narrative = Narrative(facts, painter)
    page = render(facts, narrative, title, painter.svg, made_at or datetime.now(UTC))
    try:
        replace_text(out, page)
    except OSError as error:
        raise ReportError(f"{out} can't be written: {error.strerror or error}") from error
    if png is not None:
        for plot in narrative.all_plots():
            painter.png(plot, png)
    return facts


def _need_packages() -> None:
    for name in _PACKAGES:
        try:
            __import__(name)
        except ImportError as error:
            raise ReportError(
                f"a report needs {name}, which is not installed here ({error}): pip install 'kinmqtt-metrics[report]'"
            ) from error


def _facts(database: Database, since: str | None, until: str | None) -> Facts:
    from kinmqtt_metrics import tables as t
    from kinmqtt_metrics.report.aggregation import collect

    database.check_folder()
    whole = database.whole_span()
    if whole is None:
        problems = "".join(f"\n  {left.path}: {left.why}" for left in database.left_out.values())
        raise ReportError(
            f"{database.folder}: no table has a window yet; the pipeline writes one when it is closed{problems}"
        )
    database.span = _span(since, until, whole)
    facts = collect(database)
    assert facts is not None
    if not facts.nodes and not any(
        facts.rows.get(table.name) for table in t.TABLES if table not in (t.LATE, t.REJECTED)
    ):
        of = f" of {', '.join(sorted(database.nodes))}" if database.nodes else ""
        raise ReportError(
            f"{database.folder}: nothing{of} in this span; "
            f"the windows are from {_utc(whole.start_s)} to {_utc(whole.end_s)}"
        )
    return facts


def _span(since: str | None, until: str | None, whole: Span) -> Span:
    from kinmqtt_metrics.report.time_axis import Span
    from kinmqtt_metrics.time_arguments import parse_moment

    found = {"--since": whole.start_s, "--until": whole.end_s}
    for option, text in (("--since", since), ("--until", until)):
        if text is not None:
            try:
                found[option] = parse_moment(text, whole.end_s)
            except ValueError as error:
                raise ReportError(f"{option}: {error}") from None
    span = Span(max(whole.start_s, found["--since"]), min(whole.end_s, found["--until"]))
    if span.length_s <= 0:
        raise ReportError(
            "nothing is left between --since and --until: "
            f"the windows are from {_utc(whole.start_s)} to {_utc(whole.end_s)}"
        )
    return span


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
