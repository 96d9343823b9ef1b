"""What rules would have done to what is in the table: Spark's job, and which rules of a file it can be asked of."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kinmqtt_metrics.learning.file import parsed, read
from kinmqtt_metrics.learning.model import KINDS, Replayed, Rule
from kinmqtt_metrics.learning.reading import usual_windows, windows_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def rules_in(path: Path, over_s: int) -> tuple[list[Rule], list[str]]:
    """The rules of a file that can be replayed, and the names of the others. Raises :class:`LearningError`."""
    found = parsed(path, read(path))
    rules: list[Rule] = []
    others: list[str] = []
    for table, of in found.items():
        for rule in of:
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


def replay(
    spark: SparkSession,
    tables: Path,
    rules: Sequence[Rule],
    over_s: int,
    since_s: float | None,
    until_s: float | None,
) -> dict[str, Replayed]:
    """What these rules would have done, by their names. Raises :class:`LearningError`."""
    return replayed(spark, usual_windows(spark, tables, over_s, since_s, until_s), rules, over_s)


def replayed(spark: SparkSession, usual: DataFrame, rules: Sequence[Rule], over_s: int) -> dict[str, Replayed]:
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
