"""Windows, in Spark's words.

What a window holds of a key is a row of the state, which adds up with any other of the same key: what tasks made of
a batch's records (:mod:`.staging`) is put beside the rows that are open, and grouped once. Rows of closed windows
become the tables (:mod:`.window_tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.pipeline.state import (
    BUCKETS,
    COLUMNS,
    CONNECTION,
    GAUGE,
    HISTOGRAM,
    SCHEMAS,
    SUMS,
    TRAFFIC,
    VALUES,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

    from kinmqtt_metrics.intervals import Intervals
    from kinmqtt_metrics.missing_records import Life
    from kinmqtt_metrics.pipeline.watermarks import Node

RAW_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in t.RAW.columns.items())

# ---- what was read ------------------------------------------------------------------------------------------------


def once(spark: SparkSession, rows: DataFrame, repeated: Mapping[Life, Intervals]) -> DataFrame:
    """Each record once, and none of those that were read in an earlier batch."""
    rows = rows.where("kind <> 'rejected'").dropDuplicates(["node", "boot", "seq"])
    ranges = [(*life, first, last) for life, of in repeated.items() for first, last in of]
    if not ranges:
        return rows
    before = F.broadcast(
        spark.createDataFrame(ranges, "read_node string, read_boot string, first bigint, last bigint")
    )
    same = "node = read_node and boot = read_boot and seq between first and last"
    return rows.join(before, F.expr(same), "left_anti")


def in_time(latest: int) -> Column:
    """Whether an event time can be right; ``latest`` in microseconds."""
    return F.expr(f"t between 0 and {latest}L")


def rejected(rows: DataFrame, records: DataFrame, batch: int, latest: int, ahead_s: float) -> DataFrame:
    """Of what was read the lines that could not be; of the records those whose time can't be right."""
    lines = rows.where("kind = 'rejected'").selectExpr(
        "name as file", "value as line", "reason as why", "payload as text"
    )
    when = (
        "case when abs(t) < 253402300800000000L then cast(timestamp_micros(t) as string) else cast(t as string) end"
    )
    times = records.where(~in_time(latest)).selectExpr(
        "concat(node, '-', boot) as file",
        "seq as line",
        f"concat('a record of ', {when}, if(t < 0, ': before 1970', "
        f"': more than {ahead_s:g} s ahead of the clock of the machine that reads it')) as why",
        "substring(to_json(struct(v, t, node, boot, seq, kind, name, labels, value, delta, number, client, topic)), "
        "1, 500) as text",
    )
    return _as(t.REJECTED, lines.union(times).withColumn("batch", F.lit(batch)))


# ---- windows ------------------------------------------------------------------------------------------------------


def _bound(nodes: Mapping[str, Node]) -> Column:
    """Up to where a row's node is closed."""
    if not nodes:
        return F.lit(0).cast("bigint")
    # One literal, which generated code refers to: it is compiled once, though bounds are others each time.
    each = [F.lit(x) for name, node in nodes.items() for x in (name, node.bound)]
    return F.coalesce(F.element_at(F.create_map(*each), F.col("node")), F.lit(0).cast("bigint"))


def schema_of(kind: str) -> str:
    """The columns of what tasks make, by its kind, in Spark's words."""
    return ", ".join(f"{name} {of}" for name, of in SCHEMAS[kind].items())


def windows(
    made: Mapping[str, DataFrame], open: DataFrame | None, nodes: Mapping[str, Node], window: int
) -> DataFrame | None:
    """Rows of the state, with ``closed``: of what tasks made, by its kind, and of the windows that were open.

    Nothing where there is neither.
    """

    rows = partial(_rows, made, open)
    found = (group(rows) for group in (_grouped_sums, _grouped_values, _grouped_buckets))
    grouped = [each for each in found if each is not None]
    if not grouped:
        return None
    merged = reduce(DataFrame.union, map(_shaped, grouped))
    return merged.withColumn("closed", F.expr(f"start + {window}L") <= _bound(nodes))


def _rows(
    made: Mapping[str, DataFrame], open: DataFrame | None, kind: str, families: str, **more: str
) -> DataFrame | None:
    """Returns the rows of a kind that tasks made, and those of these families that were open."""
    columns = SCHEMAS[kind]
    found = made.get(kind)
    if found is not None and more:
        found = found.selectExpr("*", *(f"{text} as {name}" for name, text in more.items()))
    if open is None:
        return found
    kept = open.where(f"family {families}").selectExpr(
        *(name if name in COLUMNS else f"cast(null as {columns[name]}) as {name}" for name in columns),
        *more,
    )
    return kept if found is None else found.union(kept)


def _grouped_sums(rows: Callable[..., DataFrame | None]) -> DataFrame | None:
    sums = rows(SUMS, f"<= {TRAFFIC}")
    if sums is None:
        return None
    return sums.groupBy("family", "start", "node", "k1", "k2", "k3", "k4", "labels").agg(
        F.sum("n").alias("n"), F.sum("a").alias("a"), F.sum("b").alias("b")
    )


def _grouped_values(rows: Callable[..., DataFrame | None]) -> DataFrame | None:
    values = rows(
        VALUES,
        f"in ({GAUGE}, {CONNECTION})",
        n="1L",
        low="number",
        high="number",
        total="number",
        sketch="cast(null as binary)",
    )
    if values is None:
        return None
    return _sketched(
        values.groupBy("family", "start", "node", "k1", "k2", "labels").agg(
            F.sum("n").alias("n"),
            F.min("low").alias("low"),
            F.max("high").alias("high"),
            F.sum("total").alias("total"),
            F.expr("kll_sketch_agg_double(number)").alias("fresh"),
            # The state has a key once. Merging as an aggregate makes a sketch for each key that has none.
            F.max("sketch").alias("kept"),
        )
    )


def _grouped_buckets(rows: Callable[..., DataFrame | None]) -> DataFrame | None:
    buckets = rows(BUCKETS, f"= {HISTOGRAM}")
    if buckets is None:
        return None
    return buckets.groupBy("family", "start", "node", "k1", "k2", "labels", "bounds", "bucket").agg(
        F.sum("n").alias("n"), F.sum("a").alias("a"), F.sum("total").alias("total")
    )


def _sketched(grouped: DataFrame) -> DataFrame:
    merged = grouped.withColumn("sketch", F.expr("if(kept is null, fresh, kll_sketch_merge_double(fresh, kept))"))
    # At once: each call reads the whole sketch.
    merged = merged.withColumn("p", F.expr("kll_sketch_get_quantile_double(sketch, array(0.5D, 0.95D, 0.99D))"))
    return merged.selectExpr("*", "p[0] as p50", "p[1] as p95", "p[2] as p99")


def _shaped(rows: DataFrame) -> DataFrame:
    has = set(rows.columns)
    return rows.select(
        *((F.col(name) if name in has else F.lit(None)).cast(kind).alias(name) for name, kind in COLUMNS.items())
    )


def _as(table: t.Table, rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(name).cast(kind).alias(name) for name, kind in table.columns.items()))
