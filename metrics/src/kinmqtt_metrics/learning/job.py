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
    from pyspark.sql import Row, SparkSession


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
                rules += rules_for(
                    kind,
                    [_usual(row) for row in heaviest],
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
            outcomes(spark, usual, rules, options.over_s),
            summed_in(usual),
        )
    finally:
        usual.unpersist()


def _usual(row: Row) -> Usual:
    told = row["told"] if row["told"] < row["rate"] else None
    return Usual(row["name"], row["rate"], row["most"], row["windows"], told)
