"""The table ``usual``, by Spark: who published how much in windows of a length."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinmqtt_metrics import formatting
from kinmqtt_metrics.errors import LearningError
from kinmqtt_metrics.learning.model import Kind, Options, Summed
from kinmqtt_metrics.record import OTHERS
from kinmqtt_metrics.spark import innermost, read_parquet
from kinmqtt_metrics.tables import USUAL
from kinmqtt_metrics.validity import LATEST_S, LONGEST_S, MOST_COUNTED

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_FILE: Final = re.compile(rf"/{USUAL.name}/(batch-[^/\s]+?\.parquet)")


def usual_windows(
    spark: SparkSession, tables: Path, over_s: int, since_s: float | None, until_s: float | None
) -> DataFrame:
    """Messages by window of ``over_s`` (``at``: its start, seconds), node, client and topic; with :data:`OTHERS`."""
    from pyspark.sql import functions as F

    files = USUAL.files(tables)
    if not files:
        raise LearningError(
            f"{tables} has no table usual (usual/batch-*.parquet): it comes from the traffic that the broker "
            "samples; kinmqtt-metrics pipeline run --help"
        )
    rows = _from_files(spark, _sound(files))
    rows = rows.withColumn("start", F.unix_micros(F.col("window_start").cast("timestamp")))
    usable = F.coalesce(
        F.col("start").between(0, LATEST_S * 1_000_000)
        & F.col("window_s").between(1, LONGEST_S)
        & F.coalesce(F.col("messages"), F.lit(0)).between(0, MOST_COUNTED),
        F.lit(False),
    )
    about = rows.agg(
        F.max(F.when(usable, F.col("window_s"))).alias("longest"), F.count_if(~usable).alias("odd")
    ).first()
    assert about is not None
    if about["odd"]:
        print(
            f"kinmqtt-metrics rules: left out {formatting.some(about['odd'], 'row')} of the table usual: "
            "their times or counts are invalid",
            file=sys.stderr,
        )
    rows = rows.filter(usable)
    window_s = about["longest"] or 1
    if over_s % window_s:
        raise LearningError(f"--over must be a multiple of the windows in {tables}, {window_s} s, and is {over_s} s")
    if since_s is not None:
        rows = rows.filter(F.col("start") >= int(since_s * 1_000_000))
    if until_s is not None:
        rows = rows.filter(F.col("start") < int(until_s * 1_000_000))
    at = (F.floor(F.col("start") / (over_s * 1_000_000)) * over_s).alias("at")
    return (
        rows.filter(F.col("messages") > 0)
        .groupBy(at, "node", "client", "topic")
        .agg(F.sum("messages").alias("messages"))
    )


def _sound(files: Sequence[Path]) -> list[Path]:
    """Those whose footers can be read; one that is torn would end the job, so it is named and left out."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    sound = []
    for path in files:
        try:
            pq.read_metadata(path)
        except (pa.ArrowException, OSError) as error:
            why = str(error).splitlines()[0] if str(error) else type(error).__name__
            print(
                f"kinmqtt-metrics rules: left out {path}: it is not a complete Parquet file: {why}", file=sys.stderr
            )
        else:
            sound.append(path)
    if not sound:
        raise LearningError(
            f"no file of the table usual can be read: {files[0]} and others are not complete Parquet files; "
            "restore them from a backup, or let the pipeline make the tables again from the landing folder"
        )
    return sound


def _from_files(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in USUAL.columns.items())
    # The schema is given, or Spark would open a file to learn it.
    return read_parquet(spark, columns, files)


def windows_of(usual: DataFrame, kind: Kind) -> DataFrame:
    """Messages of each client, or to each topic, in each window of a node."""
    from pyspark.sql import functions as F

    named = usual.filter(F.col(kind).isNotNull() & (F.col(kind) != OTHERS))
    return named.groupBy(F.col(kind).alias("name"), "node", "at").agg(F.sum("messages").alias("messages"))


def summed_in(usual: DataFrame) -> Summed:
    """How much is in the sums of others."""
    from pyspark.sql import functions as F

    windows = usual.groupBy("node", "at").agg(
        F.sum("messages").alias("messages"),
        F.sum(F.when(_of_others("client") | _of_others("topic"), F.col("messages"))).alias("others"),
    )
    row = windows.agg(F.sum("others"), F.sum("messages"), F.count("others")).first()
    assert row is not None
    return Summed(row[0] or 0, row[1] or 0, row[2])


def _of_others(kind: Kind) -> Column:
    from pyspark.sql import functions as F

    return F.coalesce(F.col(kind) == OTHERS, F.lit(False))


def rates(usual: DataFrame, kind: Kind, options: Options) -> DataFrame:
    """What is usual for each: ``rate``, ``told``, ``most`` and ``windows``, as in :class:`.model.Usual`.

    What the sink summed up as others' may be anybody's. So in a window that has such a sum each may have
    published all of it beside what is told; and where nothing is told of him, that sum alone.
    """
    from pyspark.sql import functions as F

    others = usual.filter(_of_others(kind)).groupBy("node", "at").agg(F.sum("messages").alias("others"))
    sums = sorted((row["others"] for row in others.collect()), reverse=True)
    over_s = F.lit(float(options.over_s))
    told = F.col("messages") / over_s
    known = windows_of(usual, kind)
    quantile = options.quantile
    aggregates = [
        F.percentile(told, quantile).alias("told"),
        F.max(told).alias("most"),
        F.count("*").alias("windows"),
    ]
    if not sums:
        return known.groupBy("name").agg(*aggregates).withColumn("rate", F.col("told"))
    may = F.col("messages") + F.coalesce(F.col("others"), F.lit(0))
    highest = F.udf(lambda messages: highest_quantile(messages, sums, quantile), "double", useArrow=False)
    return (
        known.join(others, ["node", "at"], "left")
        .groupBy("name")
        .agg(*aggregates, F.collect_list(may).alias("may"))
        .withColumn("rate", F.greatest(F.col("told"), highest("may") / over_s))
        .drop("may")
    )


def highest_quantile(seen: Sequence[int], unseen: Sequence[int], quantile: float) -> float:
    """The highest quantile of ``seen`` and any part of ``unseen``, which is ordered, the largest first.

    A quantile between two values is the larger one. Of so many of ``unseen`` the largest make the highest
    quantile. One more makes it higher while it is above it, and none after it does any more, so the best number
    is found by halving.
    """

    def of(number: int) -> int:
        values = sorted([*seen, *unseen[:number]])
        return values[math.ceil(quantile * (len(values) - 1))]

    least, most = 0, len(unseen)
    while least < most:
        middle = (least + most) // 2
        if unseen[middle] > of(middle):
            least = middle + 1
        else:
            most = middle
    return float(of(least))


def why_failed(error: Exception, tables: Path) -> str:
    """Of a job that Spark could not carry out. Where it is about a file, its name and what to do with it."""
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    match = _FILE.search(text)
    if match is not None:
        return (
            f"{USUAL.folder(tables) / match[1]} can't be read as a file of the table usual ({innermost(error)}): "
            "move it away or restore it from a backup, and give the command again"
        )
    return f"Spark could not carry the job out: {type(error).__name__}: {innermost(error)}"
