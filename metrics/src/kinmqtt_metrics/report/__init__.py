"""A report: one page from the tables, with plots and words, for people who never saw Spark.

It needs pyarrow, matplotlib and datasketches, which are imported when a report is made.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kinmqtt_metrics.errors import ReportError

if TYPE_CHECKING:
    from kinmqtt_metrics.report.aggregation import Facts

__all__ = ["ReportError", "add_parser", "make", "run"]

_DESCRIPTION = """\
Makes one HTML page from the tables: plots, sums and words. It holds everything it needs and can be mailed, printed or
read without a network. The pipeline may go on meanwhile.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``kinmqtt-metrics report``."""
    parser = subparsers.add_parser("report", help="make one HTML page from the tables", description=_DESCRIPTION)
    parser.add_argument("--tables", type=Path, required=True, metavar="FOLDER", help="what the pipeline writes to")
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the page, such as report.html")
    parser.add_argument("--png", type=Path, metavar="FOLDER", help="write each plot as a PNG file as well")
    when = "a time (2026-11-21T14:00, UTC where no zone is said) or how long before the newest window's end (24h, 7d)"
    parser.add_argument("--since", metavar="TIME", help=f"leave out what was before: {when}")
    parser.add_argument("--until", metavar="TIME", help="leave out windows that begin then or later")
    parser.add_argument("--node", action="append", default=[], metavar="NAME", help="only this node; may be repeated")
    parser.add_argument("--title", default="MQTT brokers", help="what stands on top (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Make the report; the exit status."""
    try:
        facts = make(
            arguments.tables,
            arguments.out,
            png=arguments.png,
            since=arguments.since,
            until=arguments.until,
            nodes=arguments.node,
            title=arguments.title,
        )
    except ReportError as error:
        print(f"kinmqtt-metrics report: {error}", file=sys.stderr)
        return 1
    for left in facts.left_out:
        print(f"kinmqtt-metrics report: left out {left.path}: {left.why}", file=sys.stderr)
    if facts.odd:
        from kinmqtt_metrics.report.narrative import odd_rows

        print(f"kinmqtt-metrics report: left out {odd_rows(facts.odd)}", file=sys.stderr)
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
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise ReportError(
            f"a report needs pyarrow, which is not installed here ({error}): pip install 'kinmqtt-metrics[report]'"
        ) from error
    from kinmqtt_metrics.report.plots import need_matplotlib
    from kinmqtt_metrics.report.sketches import need_datasketches

    need_matplotlib()
    need_datasketches()
    from kinmqtt_metrics import tables as t
    from kinmqtt_metrics.report.aggregation import collect
    from kinmqtt_metrics.report.narrative import tell
    from kinmqtt_metrics.report.plots import Painter
    from kinmqtt_metrics.report.progress import Progress
    from kinmqtt_metrics.report.reading import Reader, Span
    from kinmqtt_metrics.report.rendering import render

    reader = Reader(tables, Progress(sys.stderr), frozenset(nodes or ()))
    reader.check()
    whole = reader.whole_span([table for table in t.TABLES if "window_start" in table.columns])
    if whole is None:
        problems = "".join(f"\n  {left.path}: {left.why}" for left in reader.left_out.values())
        raise ReportError(f"{tables}: no table has a window yet; the pipeline writes one when it is closed{problems}")
    reader.span = Span(*_span(since, until, whole.start_s, whole.end_s))
    facts = collect(reader)
    assert facts is not None
    if not facts.nodes and not any(
        facts.rows.get(table.name) for table in t.TABLES if table not in (t.LATE, t.REJECTED)
    ):
        of = f" of {', '.join(nodes)}" if nodes else ""
        raise ReportError(
            f"{tables}: nothing{of} in this span; the windows are from {_utc(whole.start_s)} to {_utc(whole.end_s)}"
        )
    painter = Painter(facts)
    summary = tell(facts, painter)
    page = render(facts, summary, title, painter.svg, made_at or datetime.now(UTC))
    _write(out, page)
    if png is not None:
        for section in summary.sections:
            for plot in section.plots:
                painter.png(plot, png)
    return facts


def _span(since: str | None, until: str | None, start_s: float, end_s: float) -> tuple[float, float]:
    from kinmqtt_metrics.time_arguments import parse_moment

    begin_s, stop_s = start_s, end_s
    for option, text in (("--since", since), ("--until", until)):
        if text is None:
            continue
        try:
            moment_s = parse_moment(text, end_s)
        except ValueError as error:
            raise ReportError(f"{option}: {error}") from None
        if option == "--since":
            begin_s = max(begin_s, moment_s)
        else:
            stop_s = min(stop_s, moment_s)
    if begin_s >= stop_s:
        raise ReportError(
            f"nothing is left between --since and --until: the windows are from {_utc(start_s)} to {_utc(end_s)}"
        )
    return begin_s, stop_s


def _utc(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
            umask = os.umask(0)
            os.umask(umask)
            os.chmod(name, 0o666 & ~umask)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise ReportError(f"{path} can't be written: {error.strerror or error}") from error
