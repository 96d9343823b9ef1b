"""Limits, learned: what is usual for each client and topic becomes rules of the limiter, in the shadow.

``learn`` and ``replay`` are Spark jobs over the table ``usual``. What makes rules of their figures (:func:`decide`),
and the file of rules, know nothing of Spark. ``metrics/README.md`` says what counts as usual, and why.
"""

from __future__ import annotations

import argparse
import hashlib
import math
import os
import re
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from attrs import frozen

from kinmqtt_metrics.errors import CommandError
from kinmqtt_metrics.spark import start
from kinmqtt_metrics.record import OTHERS
from kinmqtt_metrics.report import words
from kinmqtt_metrics.tables import USUAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Kind: TypeAlias = Literal["client", "topic"]
KINDS: Final[tuple[Kind, ...]] = ("client", "topic")

EXEMPT: Final = 1_000_000_000
"""Messages a second that nobody reaches: in the rule for all others, what has a rule of its own has this."""

_FIRST_WORDS: Final = "# Limits that kinmqtt-metrics rules learned"
_MAGIC: Final = b"PAR1"
"""How a Parquet file begins and ends."""
LEAST_COUNT: Final = 0.001
"""The limiter takes none below."""
_MOST_VALUES: Final = 100_000
_LONGEST_IN_NAME: Final = 48


class LearningError(CommandError):
    """What is wrong, where, and how to mend it."""


@frozen(slots=True)
class Options:
    """``kinmqtt-metrics rules --help`` says what each means."""

    quantile: float = 0.99
    factor: float = 3.0
    over_s: int = 60
    min_windows: int = 30
    others: float = 0.95
    least: float = 1.0
    """Messages a second."""
    most_rules: int = 100
    """For clients, and as many for topics."""
    topics: bool = True
    shadow: bool = True

    def __attrs_post_init__(self) -> None:
        for option, value, fine, wanted in (
            ("--quantile", self.quantile, 0 < self.quantile <= 1, "above 0 and at most 1"),
            ("--others", self.others, 0 < self.others <= 1, "above 0 and at most 1"),
            ("--factor", self.factor, 1 <= self.factor < math.inf, "at least 1"),
            ("--over", self.over_s, self.over_s >= 1, "at least 1 s"),
            ("--min-windows", self.min_windows, self.min_windows >= 1, "at least 1"),
            ("--least", self.least, LEAST_COUNT <= self.least < EXEMPT, f"at least {LEAST_COUNT}"),
            ("--rules", self.most_rules, self.most_rules >= 0, "not below 0"),
        ):
            if not fine:
                raise LearningError(f"{option} must be {wanted}, and is {value}")


@frozen(slots=True)
class Usual:
    """What one client published, or what was published to one topic; messages a second."""

    name: str
    rate: float
    """The quantile over the windows in which there was something."""
    most: float
    windows: int


@frozen(slots=True)
class Rule:
    """A rule of the limiter."""

    kind: Kind
    name: str
    of: str | None
    """The client or topic; nothing for all that have no rule of their own."""
    count: float
    """Messages a second."""
    burst: float
    """So many may come at once."""
    usual: Usual | None = None


@frozen(slots=True)
class Replayed:
    """What a rule would have done to what is in the table."""

    windows: int = 0
    windows_over: int = 0
    messages: int = 0
    excess: int = 0
    """Messages above what the rule lets pass in a window."""
    most: float = 0.0
    """Messages a second, in the window with the most."""
    worst_at_s: float | None = None
    """When the window with the most excess began."""


@frozen(slots=True)
class Learned:
    """What a job found."""

    rules: tuple[Rule, ...]
    start_s: float
    end_s: float
    windows: int
    nodes: tuple[str, ...]
    seen: dict[Kind, int]
    unknown: dict[Kind, int]
    """Seen in too few windows to say what is usual."""
    replayed: dict[str, Replayed]
    """By name of the rule."""


# Deciding


def limit(rate: float, options: Options) -> float:
    """What a usual rate is allowed: ``factor`` times as much, rounded up to three digits; not below the least."""
    return max(_up(rate * options.factor), options.least)


def _up(value: float) -> float:
    if value <= 0:
        return 0.0
    digits = 2 - math.floor(math.log10(value))
    # A hair less than what the multiplication may have put on top.
    return float(round(math.ceil(value * 10.0**digits * (1 - 1e-12)) * 10.0**-digits, max(0, digits)))


def decide(kind: Kind, heaviest: Iterable[Usual], others_rate: float, options: Options) -> list[Rule]:
    """Rules of their own for those above what others may, and the rule for the others, which comes last.

    ``heaviest`` has those with the highest rates, one more than ``most_rules`` where there are as many. Where there
    are too many for rules of their own, the others may more: nobody who is known is limited below what is
    allowed for his own rate.
    """
    ranked = sorted(heaviest, key=lambda usual: (-usual.rate, usual.name))
    default = limit(others_rate, options)
    nameable = [usual for usual in ranked if _can_be_named(kind, usual.name)]
    unnamed = [usual for usual in ranked if not _can_be_named(kind, usual.name)]
    for usual in [*unnamed, *nameable[options.most_rules :]]:
        default = max(default, limit(usual.rate, options))
    names: set[str] = set()
    rules = []
    for usual in nameable[: options.most_rules]:
        count = limit(usual.rate, options)
        if count > default:
            rules.append(
                Rule(kind, _rule_name(kind, usual.name, names), usual.name, count, _burst(count, options), usual)
            )
    rules.append(Rule(kind, f"learned other {kind}s", None, default, _burst(default, options)))
    return rules


def _burst(count: float, options: Options) -> float:
    """A whole window's worth: within a window nobody knows when messages came."""
    return float(max(1, math.ceil(count * options.over_s)))


def _can_be_named(kind: Kind, name: str) -> bool:
    """Whether the limiter takes it as an exact name; a topic stands in a rule as a filter."""
    if not name or "\0" in name:
        return False
    return kind == "client" or not ({"+", "#"} & set(name) or name.split("/", 1)[0] == "$share")


def _rule_name(kind: Kind, of: str, taken: set[str]) -> str:
    """Printable, and no other rule's."""
    name = f"learned {kind} {of}"
    if not of.isprintable() or len(of) > _LONGEST_IN_NAME:
        digest = hashlib.sha256(of.encode("utf-8", "surrogatepass")).hexdigest()[:8]
        shown = "".join(c if c.isprintable() else "?" for c in of[:_LONGEST_IN_NAME])
        name = f"learned {kind} {shown}… {digest}"
    while name in taken:
        name += "'"
    taken.add(name)
    return name


# The file


def text_of(learned: Learned, options: Options, source: str, made_at_s: float) -> str:
    """The rules as the limiter reads them."""
    return "\n".join(_lines(learned, options, source, made_at_s)) + "\n"


def _lines(learned: Learned, options: Options, source: str, made_at_s: float) -> Iterator[str]:
    yield f"{_FIRST_WORDS} on {words.moment(made_at_s)} UTC."
    yield (
        f"# From: {words.name(source, 200)}, table usual, {words.moment(learned.start_s)} to "
        f"{words.moment(learned.end_s)} UTC,"
    )
    yield (
        f"# {learned.windows} windows of {options.over_s} s, nodes "
        f"{words.listed([words.name(n) for n in learned.nodes], 10)}."
    )
    yield (
        f"# Options: --quantile {options.quantile:g} --factor {options.factor:g} --over {options.over_s} "
        f"--min-windows {options.min_windows} --others {options.others:g} --least {options.least:g} --rules "
        f"{options.most_rules}{'' if options.topics else ' --no-topics'}"
    )
    for kind, seen in learned.seen.items():
        yield (
            f"# {words.some(seen, kind).capitalize()} seen, of which {learned.unknown[kind]} in fewer than "
            f"{options.min_windows} windows: too few to learn from."
        )
    yield "#"
    yield "# Usual is the rate that was not exceeded in so many of the windows in which there was something at all."
    if options.shadow:
        yield (
            "# All rules are in the shadow (shadow = true): they count what they would have refused, and refuse "
            "nothing."
        )
        yield (
            "# Look at limiter.shadow_blocked, then switch them on: kinmqtt-metrics rules --enable THIS-FILE "
            "[--rule NAME]"
        )
    if any(rule.kind == "topic" for rule in learned.rules):
        yield (
            "# Rules about topics look at each packet: the limiter needs them when it starts, or watch_topics = true."
        )
    for kind in KINDS:
        yield from _rules_of(kind, [rule for rule in learned.rules if rule.kind == kind], learned, options)


def _rules_of(kind: Kind, rules: Sequence[Rule], learned: Learned, options: Options) -> Iterator[str]:
    shadow = f"shadow = {'true' if options.shadow else 'false'}"
    named = [rule for rule in rules if rule.of is not None]
    for rule in named:
        assert rule.of is not None and rule.usual is not None
        yield ""
        yield "[[flow]]"
        yield (
            f"# usual {rule.usual.rate:.3g}/s, at most {rule.usual.most:.3g}/s, in {rule.usual.windows} windows; "
            + _in_words(learned.replayed.get(rule.name, Replayed()))
        )
        yield f"name = {_toml(rule.name)}"
        # A bare "*" would be every client there is.
        yield f"{kind} = [{_toml(rule.of)}]"
        yield f'per = "{kind}"'
        yield f"count = {_number(rule.count)}"
        yield f"burst = {_number(rule.burst)}"
        yield shadow
    for rule in rules:
        if rule.of is None:
            yield ""
            yield "[[param]]"
            yield f"# each {kind} without a rule of its own; {_in_words(learned.replayed.get(rule.name, Replayed()))}"
            yield f"name = {_toml(rule.name)}"
            yield f'param = "{kind}"'
            yield f"count = {_number(rule.count)}"
            yield f"burst = {_number(rule.burst)}"
            yield f"max_values = {min(_MOST_VALUES, max(1000, 2 * learned.seen.get(kind, 0)))}"
            yield shadow
            if named:
                yield ""
                yield "[param.items]"
                yield "# These have rules of their own above, and no limit here."
                yield from (f"{_toml(other.of or '')} = {EXEMPT}" for other in named)


def _in_words(replayed: Replayed) -> str:
    if not replayed.excess:
        return f"would have refused none of {words.some(replayed.messages, 'message')}"
    return (
        f"would have refused about {words.whole(replayed.excess)} of {words.some(replayed.messages, 'message')}, "
        f"in {words.some(replayed.windows_over, 'window')}"
    )


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(value)


def _toml(text: str) -> str:
    """A basic string; whatever can't be seen is written as its number."""
    out = []
    for c in text:
        if c in '"\\':
            out.append(f"\\{c}")
        elif c.isprintable():
            out.append(c)
        else:
            out.append(f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}")
    return f'"{"".join(out)}"'


def write_whole(path: Path, text: str) -> None:
    """Beside it and renamed: the limiter watches the file. Keeps the file's rights. Raises :class:`LearningError`."""
    path = path.resolve()
    try:
        mode = path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask()
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with open(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(name, mode)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
    except OSError as error:
        raise LearningError(f"{path} can't be written: {error.strerror or error}") from error


def check_replaceable(path: Path) -> None:
    """Raises :class:`LearningError` where a file holds what a person would miss: rules that are on, or another's."""
    if not path.exists():
        return
    text = _read(path)
    if not text.startswith(_FIRST_WORDS):
        raise LearningError(f"{path} was not learned, and is not written over: give --out another name")
    on = [rule["name"] for rules in _parsed(path, text).values() for rule in rules if not rule.get("shadow", False)]
    if on:
        raise LearningError(
            f"{path} has rules that are switched on ({words.listed(on, 3)}), and is not written over: learn into "
            "another file and compare, or put them into the shadow (--disable)"
        )


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise LearningError(f"{path} can't be read: {why}") from error


def _parsed(path: Path, text: str) -> dict[str, list[dict[str, Any]]]:
    try:
        parsed = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise LearningError(f"{path} is not TOML: {error}") from error
    for table, rules in parsed.items():
        if table not in ("flow", "degrade", "system", "param") or not isinstance(rules, list):
            raise LearningError(f"{path}: {table} is no array of rules; rules stand in [[flow]], [[param]] and so on")
        for number, rule in enumerate(rules):
            if not isinstance(rule, dict) or not isinstance(rule.get("name"), str):
                raise LearningError(f"{path}: {table}[{number}] has no name")
    return parsed


_HEAD: Final = re.compile(r"\s*\[\[\s*(\w+)\s*\]\]\s*(#.*)?$")
_OTHER_HEAD: Final = re.compile(r"\s*\[")
_SHADOW: Final = re.compile(r"(\s*shadow\s*=\s*)(true|false)\b")


def switched(path: Path, text: str, shadow: bool, names: Sequence[str] = ()) -> tuple[str, list[str]]:
    """The file with ``shadow`` of these rules, or of all, set; and the rules that this changed. Comments stay.

    Raises :class:`LearningError`.
    """
    before = _parsed(path, text)
    there = [rule["name"] for rules in before.values() for rule in rules]
    missing = [name for name in names if name not in there]
    if missing:
        raise LearningError(f"{path} has no rule {missing[0]!r}; it has {words.listed(there, 8)}")
    wanted = {
        (table, number): rule["name"]
        for table, rules in before.items()
        for number, rule in enumerate(rules)
        if bool(rule.get("shadow", False)) != shadow and (not names or rule["name"] in names)
    }
    lines = text.split("\n")
    counts: dict[str, int] = {}
    current: tuple[str, int] | None = None
    done: set[tuple[str, int]] = set()
    out: list[str] = []
    for line in lines:
        match = _HEAD.match(line)
        if match is not None:
            current = (match[1], counts.get(match[1], 0))
            counts[match[1]] = current[1] + 1
            out.append(line)
            if current in wanted and "shadow" not in before[current[0]][current[1]]:
                out.append(f"shadow = {'true' if shadow else 'false'}")
                done.add(current)
            continue
        if _OTHER_HEAD.match(line):
            current = None
        if current in wanted and current not in done and _SHADOW.match(line):
            assert current is not None
            line = _SHADOW.sub(lambda found: f"{found[1]}{'true' if shadow else 'false'}", line, count=1)
            done.add(current)
        out.append(line)
    changed = "\n".join(out)
    expected = {
        table: [{**rule, "shadow": shadow} if (table, n) in wanted else rule for n, rule in enumerate(rules)]
        for table, rules in before.items()
    }
    if _parsed(path, changed) != expected:
        raise LearningError(
            f"{path} is written in a way that this command does not change safely: edit shadow by hand"
        )
    return changed, list(wanted.values())


def rules_in(path: Path, over_s: int) -> tuple[list[Rule], list[str]]:
    """The rules of a file that can be replayed, and the names of the others. Raises :class:`LearningError`."""
    parsed = _parsed(path, _read(path))
    rules: list[Rule] = []
    others: list[str] = []
    for table, found in parsed.items():
        for rule in found:
            made = _replayable(table, rule, over_s)
            rules.extend(made)
            if not made:
                others.append(rule["name"])
    return rules, others


def _replayable(table: str, rule: dict[str, Any], over_s: int) -> list[Rule]:
    known = {"name", "shadow", "kind", "count", "burst", "per", "client", "topic", "param", "max_values", "items"}
    if set(rule) - known - {"verdict", "reason"} or rule.get("kind", "publish") != "publish" or "count" not in rule:
        return []
    count = float(rule["count"])
    burst = float(rule.get("burst", count * over_s))
    if table == "param" and rule.get("param") in KINDS and not {"client", "topic", "per"} & set(rule):
        return [Rule(rule["param"], rule["name"], None, count, burst)]
    about = [kind for kind in KINDS if kind in rule]
    if table == "flow" and len(about) == 1 and rule.get("per", "client") == about[0]:
        names = rule[about[0]]
        names = [names] if isinstance(names, str) else names
        if "*" not in rule[about[0]] and all(about[0] == "client" or not {"+", "#"} & set(name) for name in names):
            return [Rule(about[0], rule["name"], name, count, burst) for name in names]
    return []


# The jobs


def learn(
    spark: SparkSession, tables: Path, options: Options, since_s: float | None, until_s: float | None
) -> Learned:
    """Read ``usual`` and decide. Raises :class:`LearningError`."""
    from pyspark.sql import functions as F

    usual = _usual(spark, tables, options.over_s, since_s, until_s).cache()
    try:
        about = usual.agg(
            F.min("at").alias("first"),
            F.max("at").alias("last"),
            F.countDistinct("at").alias("windows"),
            F.sort_array(F.collect_set("node")).alias("nodes"),
        ).first()
        if about is None or about["first"] is None:
            raise LearningError(f"{tables}: the table usual has no rows in this span")
        rules: list[Rule] = []
        seen: dict[Kind, int] = {}
        unknown: dict[Kind, int] = {}
        for kind in KINDS if options.topics else KINDS[:1]:
            found = _rates(usual, kind, options).cache()
            try:
                enough = F.col("windows") >= options.min_windows
                counts = found.agg(
                    F.count("*").alias("seen"),
                    F.count_if(~enough).alias("unknown"),
                    F.max("windows").alias("longest"),
                    F.percentile(F.when(enough, F.col("rate")), options.others).alias("others"),
                ).first()
                assert counts is not None
                seen[kind], unknown[kind] = counts["seen"], counts["unknown"]
                if seen[kind] == unknown[kind]:
                    if kind == "topic":
                        continue  # each message may have a topic of its own: there is nothing usual about that
                    raise LearningError(
                        f"{tables}: too little to learn from: no client published in {options.min_windows} "
                        f"windows of {options.over_s} s, the most is {counts['longest'] or 0}; wait, or give "
                        "--min-windows"
                    )
                ranked = found.filter(enough).orderBy(F.desc("rate"), F.asc("name"))
                heaviest = ranked.limit(options.most_rules + 1).collect()
                rules += decide(
                    kind,
                    [Usual(row["name"], row["rate"], row["most"], row["windows"]) for row in heaviest],
                    counts["others"],
                    options,
                )
            finally:
                found.unpersist()
        return Learned(
            tuple(rules),
            float(about["first"]),
            float(about["last"]) + options.over_s,
            about["windows"],
            tuple(about["nodes"]),
            seen,
            unknown,
            _replayed(spark, usual, rules, options.over_s),
        )
    finally:
        usual.unpersist()


def replay(
    spark: SparkSession,
    tables: Path,
    rules: Sequence[Rule],
    over_s: int,
    since_s: float | None,
    until_s: float | None,
) -> dict[str, Replayed]:
    """What these rules would have done, by their names. Raises :class:`LearningError`."""
    return _replayed(spark, _usual(spark, tables, over_s, since_s, until_s), rules, over_s)


def _usual(spark: SparkSession, tables: Path, over_s: int, since_s: float | None, until_s: float | None) -> DataFrame:
    """Messages by window of ``over_s`` (``at``: its start, seconds), node, client and topic."""
    from pyspark.sql import functions as F

    files = USUAL.files(tables)
    if not files:
        raise LearningError(
            f"{tables} has no table usual (usual/batch-*.parquet): it comes from the traffic that the broker "
            "samples; kinmqtt-metrics pipeline run --help"
        )
    rows = _from_files(spark, _sound(files))
    longest = rows.agg(F.max("window_s").alias("longest")).first()
    window_s = (longest["longest"] if longest is not None else None) or 1
    if over_s % window_s:
        raise LearningError(f"--over must be a multiple of the windows in {tables}, {window_s} s, and is {over_s} s")
    rows = rows.withColumn("start", F.unix_micros(F.col("window_start").cast("timestamp")))
    if since_s is not None:
        rows = rows.filter(F.col("start") >= int(since_s * 1_000_000))
    if until_s is not None:
        rows = rows.filter(F.col("start") < int(until_s * 1_000_000))
    at = (F.floor(F.col("start") / (over_s * 1_000_000)) * over_s).alias("at")
    told = (F.col("client").isNull() | (F.col("client") != OTHERS)) & (F.col("messages") > 0)
    return rows.filter(told).groupBy(at, "node", "client", "topic").agg(F.sum("messages").alias("messages"))


def _sound(files: Sequence[Path]) -> list[Path]:
    """Those that are whole; one that is torn would end the job, so it is named and left out."""
    sound = []
    for path in files:
        try:
            with path.open("rb") as file:
                begin = file.read(len(_MAGIC))
                file.seek(-len(_MAGIC), os.SEEK_END)
                whole = begin == _MAGIC == file.read()
        except OSError:
            whole = False
        if whole:
            sound.append(path)
        else:
            print(f"kinmqtt-metrics rules: left out {path}: it is no whole Parquet file", file=sys.stderr)
    if not sound:
        raise LearningError(
            f"no file of the table usual can be read: {files[0]} and others are no whole Parquet files"
        )
    return sound


def _from_files(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in USUAL.columns.items())
    # The schema is given, or Spark would open a file to learn it.
    return spark.read.schema(columns).parquet(*(file.resolve().as_uri() for file in files))


def _windows(usual: DataFrame, kind: Kind) -> DataFrame:
    """Messages of each client, or to each topic, in each window of a node."""
    from pyspark.sql import functions as F

    named = usual.filter(F.col(kind).isNotNull() & (F.col(kind) != OTHERS))
    return named.groupBy(F.col(kind).alias("name"), "node", "at").agg(F.sum("messages").alias("messages"))


def _rates(usual: DataFrame, kind: Kind, options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    rate = F.col("messages") / F.lit(float(options.over_s))
    return (
        _windows(usual, kind)
        .groupBy("name")
        .agg(
            F.percentile(rate, options.quantile).alias("rate"),
            F.max(rate).alias("most"),
            F.count("*").alias("windows"),
        )
    )


def _replayed(spark: SparkSession, usual: DataFrame, rules: Sequence[Rule], over_s: int) -> dict[str, Replayed]:
    from pyspark.sql import functions as F

    found: dict[str, Replayed] = {}
    for kind in KINDS:
        of_kind = [rule for rule in rules if rule.kind == kind]
        if not of_kind:
            continue
        by_name = spark.createDataFrame(
            [(rule.of, rule.name, rule.count) for rule in of_kind if rule.of is not None],
            "name string, rule string, count double",
        )
        default = next((rule for rule in of_kind if rule.of is None), None)
        rows = _windows(usual, kind).join(F.broadcast(by_name), "name", "left")
        if default is not None:
            rows = rows.withColumn("count", F.coalesce("count", F.lit(default.count))).withColumn(
                "rule", F.coalesce("rule", F.lit(default.name))
            )
        excess = F.greatest(F.lit(0), F.ceil(F.col("messages") - F.col("count") * over_s))
        sums = (
            rows.filter(F.col("rule").isNotNull())
            .withColumn("excess", excess)
            .groupBy("rule")
            .agg(
                F.count("*").alias("windows"),
                F.count_if(F.col("excess") > 0).alias("over"),
                F.sum("messages").alias("messages"),
                F.sum("excess").alias("excess"),
                F.max("messages").alias("most"),
                F.max_by("at", "excess").alias("worst"),
            )
        )
        for row in sums.collect():
            worst = float(row["worst"]) if row["excess"] else None
            found[row["rule"]] = Replayed(
                row["windows"], row["over"], row["messages"], row["excess"], row["most"] / over_s, worst
            )
    return found


# The command

_DESCRIPTION = """\
Learns what is usual for each client and topic from the table usual, and writes rules for the limiter (the plugin
sentinel_limiter) into a file. The rules are in the shadow: they count what they would have refused, and refuse
nothing, until --enable switches them on.
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """``kinmqtt-metrics rules``."""
    defaults = Options()
    parser = subparsers.add_parser("rules", help="learn limiter rules from what is usual", description=_DESCRIPTION)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--out", type=Path, metavar="FILE", help="learn, and write the rules there; written over")
    what.add_argument("--replay", type=Path, metavar="FILE", help="say what the rules in a file would have refused")
    what.add_argument("--enable", type=Path, metavar="FILE", help="switch rules in a file on: shadow = false")
    what.add_argument("--disable", type=Path, metavar="FILE", help="put rules in a file into the shadow")
    parser.add_argument("--rule", action="append", default=[], metavar="NAME", help="only this rule; may be repeated")
    parser.add_argument("--tables", type=Path, metavar="FOLDER", help="what the pipeline writes to")
    parser.add_argument(
        "--since", metavar="TIME", help="leave out what was before: 2026-11-21T14:00 (UTC), or 24h ago"
    )
    parser.add_argument("--until", metavar="TIME", help="leave out windows that begin then or later")
    add = parser.add_argument
    said = "(default: %(default)s)"
    add(
        "--quantile",
        type=float,
        default=defaults.quantile,
        help=f"usual is what so many windows did not exceed {said}",
    )
    add("--factor", type=float, default=defaults.factor, help=f"how many times the usual rate is allowed {said}")
    add("--over", type=int, default=defaults.over_s, metavar="SECONDS", help=f"rates are means over so long {said}")
    add(
        "--min-windows",
        type=int,
        default=defaults.min_windows,
        metavar="N",
        help=f"who published in fewer windows of --over seconds is not known well enough {said}",
    )
    add(
        "--others",
        type=float,
        default=defaults.others,
        help=f"this quantile of all clients' usual rates is what others are allowed a factor of {said}",
    )
    add("--least", type=float, default=defaults.least, help=f"no limit below so many messages a second {said}")
    add(
        "--rules",
        type=int,
        default=defaults.most_rules,
        metavar="N",
        help=f"the most rules for clients, and for topics {said}",
    )
    add("--no-topics", action="store_true", help="only rules about clients: those about topics look at each packet")
    add("--master", default="local[2]", help=f"where Spark runs {said}")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked; the exit status."""
    try:
        for option in ("enable", "disable"):
            path = getattr(arguments, option)
            if path is not None:
                return _switch(path, option == "disable", arguments.rule)
        if arguments.tables is None:
            raise LearningError("--tables is needed: the folder that the pipeline writes to")
        return _learn(arguments) if arguments.out is not None else _replay(arguments)
    except CommandError as error:
        print(f"kinmqtt-metrics rules: {error}", file=sys.stderr)
        return 1


def _switch(path: Path, shadow: bool, names: Sequence[str]) -> int:
    text, changed = switched(path, _read(path), shadow, names)
    if changed:
        write_whole(path, text)
    for name in changed:
        print(f"{words.name(name, 100)}: {'in the shadow' if shadow else 'on'}")
    if not changed:
        print(f"nothing to change: all are {'in the shadow' if shadow else 'on'}")
    return 0


def _learn(arguments: argparse.Namespace) -> int:
    options = Options(
        arguments.quantile,
        arguments.factor,
        arguments.over,
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
    with _Session(arguments.master) as spark:
        learned = learn(spark, arguments.tables, options, since_s, until_s)
    text = text_of(learned, options, str(arguments.tables), datetime.now(UTC).timestamp())
    write_whole(arguments.out, text)
    own = {
        kind: sum(1 for rule in learned.rules if rule.kind == kind and rule.of is not None) for kind in learned.seen
    }
    told = words.listed([f"{words.some(n, 'rule')} for {kind}s" for kind, n in own.items()])
    print(f"{arguments.out}: {told}, and one for all others of each, in the shadow")
    _print_replayed(learned.rules, learned.replayed)
    return 0


def _replay(arguments: argparse.Namespace) -> int:
    rules, others = rules_in(arguments.replay, arguments.over)
    rules = [rule for rule in rules if not arguments.rule or rule.name in arguments.rule]
    if not rules:
        raise LearningError(
            f"{arguments.replay} has no rule that can be replayed (about clients' or topics' messages)"
        )
    since_s, until_s = _moments(arguments)
    with _Session(arguments.master) as spark:
        replayed = replay(spark, arguments.tables, rules, arguments.over, since_s, until_s)
    _print_replayed(rules, replayed, most=1000)
    for name in others:
        print(f"not replayed: {words.name(name, 80)}", file=sys.stderr)
    return 0


def _print_replayed(rules: Iterable[Rule], replayed: dict[str, Replayed], most: int = 20) -> None:
    names = {rule.name: rule for rule in rules}
    rows = [("allowed/s", "most/s", "messages", "would refuse", "windows", "worst, UTC", "rule")]
    ordered = sorted(names, key=lambda name: -replayed.get(name, Replayed()).excess)
    for name in ordered[:most]:
        did = replayed.get(name, Replayed())
        rows.append(
            (
                _number(names[name].count),
                f"{did.most:.3g}",
                words.whole(did.messages),
                words.whole(did.excess),
                words.whole(did.windows_over),
                words.moment(did.worst_at_s) if did.worst_at_s is not None else "",
                words.name(name, 80),
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(6)]
    for row in rows:
        print("  ".join([*(cell.rjust(width) for cell, width in zip(row, widths, strict=False)), row[6]]))
    if len(ordered) > most:
        print(f"and {len(ordered) - most} rules that would have refused no more; --replay says all")


def _moments(arguments: argparse.Namespace) -> tuple[float | None, float | None]:
    from kinmqtt_metrics.report.moments import parse_moment

    found: list[float | None] = []
    now_s = datetime.now(UTC).timestamp()
    for option in ("since", "until"):
        text = getattr(arguments, option)
        try:
            found.append(None if text is None else parse_moment(text, now_s))
        except ValueError as error:
            raise LearningError(f"--{option}: {error}") from None
    return found[0], found[1]


class _Session:
    """A session of Spark for one job."""

    def __init__(self, master: str) -> None:
        self._master = master

    def __enter__(self) -> SparkSession:
        self._spark = start(self._master, {}, "kinmqtt-metrics rules")
        return self._spark

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._spark.stop()
        if isinstance(error, Exception) and not isinstance(error, CommandError):
            said = str(error).strip().splitlines()
            raise LearningError(
                f"Spark could not carry the job out: {type(error).__name__}: {said[0] if said else 'it says no more'}"
            ) from error
