"""What rules would have done to what is in the table: Spark's job, and which rules of a file it can be asked of."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.learning.existing_rules import parsed, read
from kinmqtt_metrics.learning.model import BOUNDS, KINDS, LEAST_COUNT, Replayed, Rule, Summed
from kinmqtt_metrics.learning.reading import summed_in, usual_windows, windows_of
from kinmqtt_metrics.learning.rules_file import FIRST_WORDS
from kinmqtt_metrics.number_arguments import Number

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_MATCHING: Final = frozenset(("kind", "client", "topic", "per", "param", "items", "max_values"))
_KNOWN: Final = _MATCHING | {"name", "shadow", "count", "burst", "verdict", "reason"}
"""Keys that are understood; a rule with others is not replayed."""
_COUNT: Final = Number(LEAST_COUNT, 1e15, "messages a second")
_BURST: Final = Number(1, 1e18, "messages")


def rules_in(path: Path, over_s: int) -> tuple[list[Rule], list[str]]:
    """The rules of a file that can be replayed, and the names of the others. Raises :class:`LearningError`."""
    rules: list[Rule] = []
    others: list[str] = []
    for table, found in parsed(path, read(path)).items():
        for number, rule in enumerate(found):
            try:
                made = _replayable(table, rule, over_s)
            except ValueError as error:
                raise LearningError(f"{path}: {table}[{number}] ({rule['name']}): {error}") from None
            rules.extend(made)
            if not made:
                others.append(rule["name"])
    return rules, others


def _replayable(table: str, rule: dict[str, Any], over_s: int) -> list[Rule]:
    """Raises ``ValueError`` for what no rule can say."""
    if table not in ("flow", "param") or set(rule) - _KNOWN or rule.get("kind", "publish") != "publish":
        return []
    if "count" not in rule:
        raise ValueError(f"it has no count; write {_COUNT}")
    for key, bounds in (("count", _COUNT), ("burst", _BURST)):
        problem = bounds.problem(rule[key]) if key in rule else None
        if problem is not None:
            raise ValueError(f"{key} {problem}")
    count = float(rule["count"])
    burst = float(rule.get("burst", count * over_s))
    about = [kind for kind in KINDS if kind in rule]
    of = {kind: _names(kind, rule[kind]) for kind in about}
    if table == "param":
        if rule.get("param") not in KINDS or about or "per" in rule:
            return []
        return [Rule(rule["param"], rule["name"], None, count, burst)]
    if len(about) != 1 or rule.get("per", "client") != about[0]:
        return []
    [(kind, names)] = of.items()
    if rule[kind] == "*" or (kind == "topic" and any({"+", "#"} & set(name) for name in names)):
        return []
    return [Rule(kind, rule["name"], name, count, burst) for name in names]


def _names(kind: str, said: object) -> list[str]:
    names = [said] if isinstance(said, str) else said
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"{kind} must be a string or a list of strings, and is {said!r:.60}")
    return names


def replay_rules(
    spark: SparkSession,
    tables: Path,
    rules: Sequence[Rule],
    over_s: int,
    since_s: float | None,
    until_s: float | None,
) -> tuple[dict[str, Replayed], Summed]:
    """What these rules would have done, by their names, and what nobody can say. Raises :class:`LearningError`."""
    usual = usual_windows(spark, tables, over_s, since_s, until_s).cache()
    try:
        return outcomes(spark, usual, rules, over_s), summed_in(usual)
    finally:
        usual.unpersist()


_OPTIONS: Final = re.compile(r"^# Options: .*?--over ([0-9]+)(?: |$)", re.MULTILINE)


def learned_over(path: Path) -> int | None:
    """The ``--over`` that a file was learned with, as its head says; nothing where it was not learned.

    Raises :class:`LearningError`.
    """
    text = read(path)
    match = _OPTIONS.search(text) if text.startswith(FIRST_WORDS) else None
    if match is None:
        return None
    over_s = int(match[1][:20])
    problem = BOUNDS["--over"][1].problem(over_s)
    if problem is not None:
        raise LearningError(f"{path}: --over in the line '# Options' {problem}; or give --over")
    return over_s


def outcomes(spark: SparkSession, usual: DataFrame, rules: Sequence[Rule], over_s: int) -> dict[str, Replayed]:
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
        rows = windows_of(usual, kind).join(F.broadcast(by_name), "name", "left")
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
