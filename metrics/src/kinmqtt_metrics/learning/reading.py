"""The table ``usual``, by Spark: who published how much in windows of a length."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kinmqtt_metrics.learning.model import Kind, LearningError, Options
from kinmqtt_metrics.record import OTHERS
from kinmqtt_metrics.tables import USUAL

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_MAGIC: Final = b"PAR1"
"""How a Parquet file begins and ends."""


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
