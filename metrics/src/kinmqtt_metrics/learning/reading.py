"""The table ``usual``, by Spark: who published how much in windows of a length."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from kinmqtt_metrics import words
from kinmqtt_metrics.learning.model import Kind, LearningError, Options
from kinmqtt_metrics.odd import LATEST_S, LONGEST_S, MOST_COUNTED
from kinmqtt_metrics.record import OTHERS
from kinmqtt_metrics.spark import innermost
from kinmqtt_metrics.tables import USUAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_FILE: Final = re.compile(r"file:(?://)?(/\S+?\.parquet)")


def usual_windows(
    spark: SparkSession, tables: Path, over_s: int, since_s: float | None, until_s: float | None
) -> DataFrame:
    """Messages by window of ``over_s`` (``at``: its start, seconds), node, client and topic."""
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
            f"kinmqtt-metrics rules: left out {words.some(about['odd'], 'row')} of the table usual: their times or "
            "counts can't be",
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
    told = (F.col("client").isNull() | (F.col("client") != OTHERS)) & (F.col("messages") > 0)
    return rows.filter(told).groupBy(at, "node", "client", "topic").agg(F.sum("messages").alias("messages"))


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
            print(f"kinmqtt-metrics rules: left out {path}: it is no whole Parquet file: {why}", file=sys.stderr)
        else:
            sound.append(path)
    if not sound:
        raise LearningError(
            f"no file of the table usual can be read: {files[0]} and others are no whole Parquet files; restore them "
            "from a backup, or have the pipeline make the tables anew from the landing folder"
        )
    return sound


def _from_files(spark: SparkSession, files: Sequence[Path]) -> DataFrame:
    columns = ", ".join(f"`{name}` {kind}" for name, kind in USUAL.columns.items())
    # The schema is given, or Spark would open a file to learn it.
    return spark.read.schema(columns).parquet(*(file.resolve().as_uri() for file in files))


def windows_of(usual: DataFrame, kind: Kind) -> DataFrame:
    """Messages of each client, or to each topic, in each window of a node."""
    from pyspark.sql import functions as F

    named = usual.filter(F.col(kind).isNotNull() & (F.col(kind) != OTHERS))
    return named.groupBy(F.col(kind).alias("name"), "node", "at").agg(F.sum("messages").alias("messages"))


def rates(usual: DataFrame, kind: Kind, options: Options) -> DataFrame:
    from pyspark.sql import functions as F

    rate = F.col("messages") / F.lit(float(options.over_s))
    return (
        windows_of(usual, kind)
        .groupBy("name")
        .agg(
            F.percentile(rate, options.quantile).alias("rate"),
            F.max(rate).alias("most"),
            F.count("*").alias("windows"),
        )
    )


def why_failed(error: Exception) -> str:
    """Of a job that Spark could not carry out. Where it is about a file, its name and what to do with it."""
    text = f"{error}\n{getattr(error, '_stackTrace', None) or ''}"
    match = _FILE.search(text)
    if match is not None:
        return (
            f"{unquote(match[1])} can't be read as a file of the table usual ({innermost(error)}): move it away or "
            "restore it from a backup, and give the command again"
        )
    return f"Spark could not carry the job out: {type(error).__name__}: {innermost(error)}"
