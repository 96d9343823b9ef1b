"""``kinmqtt-metrics rules``."""

from __future__ import annotations

import argparse
import logging
import sys
import threading
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kinmqtt_metrics import formatting
from kinmqtt_metrics.errors import CommandError, LearningError
from kinmqtt_metrics.learning import sample_size
from kinmqtt_metrics.learning.existing_rules import check_replaceable, read, switched, write_whole
from kinmqtt_metrics.learning.job import learn
from kinmqtt_metrics.learning.model import BOUNDS, Options, Replayed, Rule
from kinmqtt_metrics.learning.reading import why_failed
from kinmqtt_metrics.learning.replay import learned_over, replay_rules, rules_in
from kinmqtt_metrics.learning.rules_file import number, summed_words, text_of
from kinmqtt_metrics.quiet import Passing, interrupts, quiet_after
from kinmqtt_metrics.spark import check_path, start
from kinmqtt_metrics.table_arguments import local, tables_at

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_DESCRIPTION = """\
Learns what is usual for each client and topic from the table usual, and writes rules for the limiter (the plugin
sentinel_limiter) into a file. The rules are in the shadow: they count what they would have refused, and refuse
nothing, until --enable switches them on.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``kinmqtt-metrics rules``."""
    defaults = Options()
    parser = subparsers.add_parser("rules", help="learn limiter rules from usual rates", description=_DESCRIPTION)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument(
        "--out", type=Path, metavar="FILE", help="learn, and write the rules to this file, which is replaced"
    )
    what.add_argument("--replay", type=Path, metavar="FILE", help="show what the rules in a file would have refused")
    what.add_argument("--enable", type=Path, metavar="FILE", help="enable rules in a file: shadow = false")
    what.add_argument("--disable", type=Path, metavar="FILE", help="disable rules in a file: shadow = true")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="only this rule; repeatable")
    parser.add_argument("--tables", type=tables_at, metavar="FOLDER", help="where the pipeline writes")
    parser.add_argument(
        "--since", metavar="TIME", help="only windows from this time on: 2026-11-21T14:00 (UTC), or 24h ago"
    )
    parser.add_argument("--until", metavar="TIME", help="only windows that begin before this time")

    def option(name: str, text: str, metavar: str) -> None:
        key, bounds = BOUNDS[name]
        default = getattr(defaults, key)
        if name == "--over":
            said = f"{text}; {bounds} (default: {default}; of --replay what the file was learned with)"
            parser.add_argument(name, type=bounds, metavar=metavar, help=said)
            return
        said = f"{text}; {bounds} (default: %(default)s)"
        parser.add_argument(name, type=bounds, default=default, metavar=metavar, help=said)

    option("--quantile", "this share of the windows did not exceed the usual rate", "SHARE")
    option("--factor", "the limit is this many times the usual rate", "N")
    option("--over", "length of the windows over which rates are averaged", "SECONDS")
    option("--min-windows", "clients with fewer windows of --over seconds get no rule of their own", "N")
    option("--others", "the rule for all others is based on this quantile of all usual rates", "SHARE")
    option("--least", "no limit is lower", "RATE")
    option("--rules", "maximum number of rules for clients, and for topics", "N")
    parser.add_argument(
        "--no-topics", action="store_true", help="only rules for clients; rules for topics look at each packet"
    )
    parser.add_argument("--master", default="local[2]", help="where Spark runs (default: %(default)s)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the exit status."""
    try:
        for option in ("enable", "disable"):
            path = getattr(arguments, option)
            if path is not None:
                return _switch(path, option == "disable", arguments.rule)
        if arguments.tables is None:
            raise LearningError("--tables is required: the folder that the pipeline writes to")
        check_path(local(arguments.tables))
        return _learn(arguments) if arguments.out is not None else _replay(arguments)
    except CommandError as error:
        print(f"kinmqtt-metrics rules: {error}", file=sys.stderr)
        return 1


def _switch(path: Path, shadow: bool, names: Sequence[str]) -> int:
    text, changed = switched(path, read(path), shadow, names)
    if changed:
        write_whole(path, text)
    for name in changed:
        print(f"{formatting.name(name, 100)}: {'in the shadow' if shadow else 'on'}")
    if not changed:
        print(f"nothing to change: all are {'in the shadow' if shadow else 'on'}")
    return 0


def _learn(arguments: argparse.Namespace) -> int:
    options = Options(
        arguments.quantile,
        arguments.factor,
        Options().over_s if arguments.over is None else arguments.over,
        arguments.min_windows,
        arguments.others,
        arguments.least,
        arguments.rules,
        not arguments.no_topics,
    )
    if not arguments.out.resolve().parent.is_dir():
        raise LearningError(f"{arguments.out}: there is no folder {arguments.out.resolve().parent}")
    check_replaceable(arguments.out)
    since_s, until_s = _moments(arguments)
    with Session(arguments.master, arguments.tables) as spark:
        learned = learn(spark, arguments.tables, options, since_s, until_s)
    text = text_of(learned, options, str(arguments.tables), datetime.now(UTC).timestamp())
    write_whole(arguments.out, text)
    own = {
        kind: sum(1 for rule in learned.rules if rule.kind == kind and rule.of is not None) for kind in learned.seen
    }
    told = formatting.listed([f"{formatting.some(n, 'rule')} for {kind}s" for kind, n in own.items()])
    print(f"{arguments.out}: {told}, and one for all others of each, in the shadow")
    if learned.summed.messages:
        print("\n".join(summed_words(learned.summed)))
        print("Usual rates and limits are as high as these messages allow.")
    for sentence in sample_size.sentences(learned, options):
        print(sentence)
    _print_replayed(learned.rules, learned.replayed, options.over_s)
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    over_s = arguments.over
    if over_s is None:
        over_s = learned_over(arguments.replay) or Options().over_s
    rules, others = rules_in(arguments.replay, over_s)
    rules = [rule for rule in rules if not arguments.rule or rule.name in arguments.rule]
    if not rules:
        raise LearningError(
            f"{arguments.replay} has no rule that can be replayed (about clients' or topics' messages)"
        )
    since_s, until_s = _moments(arguments)
    with Session(arguments.master, arguments.tables) as spark:
        replayed, summed = replay_rules(spark, arguments.tables, rules, over_s, since_s, until_s)
    if summed.messages:
        print("\n".join(summed_words(summed)))
    _print_replayed(rules, replayed, over_s, most=1000)
    for name in others:
        print(f"not replayed: {formatting.name(name, 80)}", file=sys.stderr)
    return 0


def _print_replayed(rules: Iterable[Rule], replayed: dict[str, Replayed], over_s: int, most: int = 20) -> None:
    names = {rule.name: rule for rule in rules}
    rows = [("allowed/s", "most/s", "messages", "would refuse", f"windows of {over_s} s", "worst, UTC", "rule")]
    ordered = sorted(names, key=lambda name: -replayed.get(name, Replayed()).excess)
    for name in ordered[:most]:
        did = replayed.get(name, Replayed())
        rows.append(
            (
                number(names[name].count),
                f"{did.most:.3g}",
                formatting.whole(did.messages),
                formatting.whole(did.excess),
                formatting.whole(did.windows_over),
                formatting.moment(did.worst_at_s) if did.worst_at_s is not None else "",
                formatting.name(name, 80),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        print("  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[6]]))
    if len(ordered) > most:
        print(f"and {len(ordered) - most} rules that would have refused no more; --replay says all")


def _moments(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    from kinmqtt_metrics.time_arguments import parse_moment

    found: list[float | None] = []
    now_s = datetime.now(UTC).timestamp()
    for option in ("since", "until"):
        text = getattr(arguments, option)
        try:
            found.append(None if text is None else parse_moment(text, now_s))
        except ValueError as error:
            raise LearningError(f"--{option}: {error}") from None
    return found[0], found[1]


class Session:
    """A session of Spark for one job."""

    def __init__(self, master: str, tables: Path) -> None:
        self._master = master
        self._tables = tables

    def __enter__(self) -> SparkSession:
        ending = threading.Event()
        passing = Passing(ending)
        with ExitStack() as around:
            # After ^C neither Java nor Py4J is heard, which tell of it at length.
            around.enter_context(quiet_after(ending))
            around.enter_context(interrupts(ending))
            self._spark = start(self._master, {}, "kinmqtt-metrics rules", passing)
            around.callback(passing.flush)
            self._around = around.pop_all()
        return self._spark

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        with self._around:
            try:
                self._spark.stop()
            except Exception:
                # Its Java process is gone already: there is nothing to stop.
                logging.getLogger(__name__).debug("Spark was gone before it was stopped", exc_info=True)
        if isinstance(error, Exception) and not isinstance(error, CommandError):
            raise LearningError(why_failed(error, self._tables)) from error
