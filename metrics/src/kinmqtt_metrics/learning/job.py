"""The job: what is usual is read, decided on, and replayed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.learning.model import KINDS, Kind, Learned, Options, Rule, Usual
from kinmqtt_metrics.learning.policy import rules_for
from kinmqtt_metrics.learning.reading import rates, summed_in, usual_windows
from kinmqtt_metrics.learning.replay import outcomes

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, Row, SparkSession


def learn(
    spark: SparkSession, tables: Path, options: Options, since_s: float | None, until_s: float | None
) -> Learned:
    """Read ``usual`` and rules_for. Raises :class:`LearningError`."""
    from pyspark.sql import functions as F

    usual = usual_windows(spark, tables, options.over_s, since_s, until_s).cache()
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
            found, seen[kind], unknown[kind] = _learn_kind(usual, tables, kind, options)
            rules += found
        return Learned(
            tuple(rules),
            float(about["first"]),
            float(about["last"]) + options.over_s,
            about["windows"],
            tuple(about["nodes"]),
            seen,
            unknown,
            outcomes(spark, usual, rules, options.over_s),
            summed_in(usual),
        )
    finally:
        usual.unpersist()


def _learn_kind(usual: DataFrame, tables: Path, kind: Kind, options: Options) -> tuple[list[Rule], int, int]:
    """Returns the rules, how many clients or topics there are, and how many of them are in too few windows."""
    from pyspark.sql import functions as F

    found = rates(usual, kind, options).cache()
    try:
        enough = F.col("windows") >= options.min_windows
        counts = found.agg(
            F.count("*").alias("seen"),
            F.count_if(~enough).alias("unknown"),
            F.max("windows").alias("longest"),
            F.percentile(F.when(enough, F.col("rate")), options.others).alias("others"),
        ).first()
        assert counts is not None
        seen, unknown = counts["seen"], counts["unknown"]
        if seen == unknown:
            if kind == "topic":
                return [], seen, unknown  # Each message may have a topic of its own: nothing about that is usual.
            raise LearningError(
                f"{tables}: too little to learn from: no client published in {options.min_windows} "
                f"windows of {options.over_s} s, the most is {counts['longest'] or 0}; wait, or give "
                "--min-windows"
            )
        ranked = found.filter(enough).orderBy(F.desc("rate"), F.asc("name"))
        heaviest = ranked.limit(options.most_rules + 1).collect()
        return rules_for(kind, [_usual(row) for row in heaviest], counts["others"], options), seen, unknown
    finally:
        found.unpersist()


def _usual(row: Row) -> Usual:
    told = row["told"] if row["told"] < row["rate"] else None
    return Usual(row["name"], row["rate"], row["most"], row["windows"], told)
