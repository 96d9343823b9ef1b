"""Windows, in Spark's words.

What a window holds of a key is a row of the state, which adds up with any other of the same key: a batch's records
are made such rows, put beside the rows that are open, and grouped once. Rows of closed windows become the
tables (:mod:`.shaping`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as F

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.pipeline.state import CONNECTION, COUNTER, EVENT, GAUGE, HISTOGRAM, STATE, TRAFFIC
from kinmqtt_metrics.record import FIELDS

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

    from kinmqtt_metrics.pipeline.closing import Node
    from kinmqtt_metrics.pipeline.seen import Life, Ranges

RAW_SCHEMA: Final = ", ".join(f"`{name}` {kind}" for name, kind in t.RAW.columns.items())

# ---- what was read ------------------------------------------------------------------------------------------------


def read(spark: SparkSession, folder: Path) -> DataFrame:
    """Records as they were staged."""
    return spark.read.schema(RAW_SCHEMA).parquet(str(folder))


def with_time(rows: DataFrame) -> DataFrame:
    """What the source says, as ``raw`` has it."""
    return rows.select(*FIELDS, F.expr("timestamp_micros(t)").alias("at"))


def words(rows: DataFrame) -> DataFrame:
    """Which ``seq`` are there, 64 in a word, whether any is there twice, and between which times."""
    return (
        rows.where("kind <> 'rejected'")
        .groupBy("node", "boot", F.expr("shiftright(seq, 6)").alias("word"))
        .agg(
            F.expr("bit_or(shiftleft(1L, cast(seq & 63 as int)))").alias("bits"),
            F.count(F.lit(1)).alias("n"),
            F.min("t").alias("first"),
            F.max("t").alias("newest"),
        )
        .withColumn("twice", F.expr("n > bit_count(bits)"))
    )


def once(spark: SparkSession, rows: DataFrame, repeated: Mapping[Life, Ranges]) -> DataFrame:
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


def is_late(nodes: Mapping[str, Node], window: int) -> Column:
    """Whether a record's window is closed."""
    return F.expr(f"t - pmod(t, {window}L) + {window}L") <= _bound(nodes)


def late(rows: DataFrame, batch: int) -> DataFrame:
    """Counts of records that came late."""
    counts = rows.groupBy("node", "boot", "kind").agg(F.count(F.lit(1)).alias("records"))
    return _as(t.LATE, counts.withColumn("batch", F.lit(batch)))


def windows(rows: DataFrame, open: DataFrame | None, nodes: Mapping[str, Node], window: int) -> DataFrame:
    """Rows of the state: of these records and of the windows that were open; with ``closed``."""
    start = f"t - pmod(t, {window}L) as start"
    sums = rows.where("kind in ('counter', 'event', 'traffic')").selectExpr(
        f"case kind when 'counter' then {COUNTER} when 'event' then {EVENT} else {TRAFFIC} end as family",
        start,
        "node",
        "if(kind = 'traffic', client, name) as k1",
        "case kind when 'counter' then unit when 'event' then reason else topic end as k2",
        "if(kind = 'event', client, null) as k3",
        "if(kind = 'event', labels['by'], null) as k4",
        "if(kind = 'counter', labels, null) as labels",
        "1L as n",
        "coalesce(delta, if(kind = 'event', 1L, 0L)) as a",
        "if(kind = 'traffic', coalesce(bytes, 0L), 0L) as b",
    )
    values = rows.where(
        "number is not null and (kind = 'gauge' or (kind = 'event' and name = 'disconnected'))"
    ).selectExpr(
        f"if(kind = 'gauge', {GAUGE}, {CONNECTION}) as family",
        start,
        "node",
        "if(kind = 'gauge', name, reason) as k1",
        "if(kind = 'gauge', unit, null) as k2",
        "if(kind = 'gauge', labels, null) as labels",
        "1L as n",
        "number",
        "number as low",
        "number as high",
        "number as total",
        "cast(null as binary) as sketch",
    )
    buckets = (
        rows.where("kind = 'histogram'")
        .selectExpr(
            start,
            "node",
            "name as k1",
            "unit as k2",
            "labels",
            "coalesce(bounds, array()) as bounds",
            "sum",
            "posexplode(concat(array(0L), coalesce(counts, array()))) as (place, a)",
        )
        .selectExpr(
            f"{HISTOGRAM} as family",
            "start",
            "node",
            "k1",
            "k2",
            "labels",
            "bounds",
            "place - 1 as bucket",
            "if(place = 0, 1L, 0L) as n",
            "coalesce(a, 0L) as a",
            "if(place = 0, coalesce(sum, 0D), 0D) as total",
        )
    )
    if open is not None:
        sums = sums.union(open.where(f"family <= {TRAFFIC}").select(*sums.columns))
        values = values.union(
            open.where(f"family in ({GAUGE}, {CONNECTION})")
            .withColumn("number", F.lit(None).cast("double"))
            .select(*values.columns)
        )
        buckets = buckets.union(open.where(f"family = {HISTOGRAM}").select(*buckets.columns))

    grouped = [
        sums.groupBy("family", "start", "node", "k1", "k2", "k3", "k4", "labels").agg(
            F.sum("n").alias("n"), F.sum("a").alias("a"), F.sum("b").alias("b")
        ),
        _sketched(
            values.groupBy("family", "start", "node", "k1", "k2", "labels").agg(
                F.sum("n").alias("n"),
                F.min("low").alias("low"),
                F.max("high").alias("high"),
                F.sum("total").alias("total"),
                F.expr("kll_sketch_agg_double(number)").alias("fresh"),
                F.expr("kll_merge_agg_double(sketch)").alias("kept"),
            )
        ),
        buckets.groupBy("family", "start", "node", "k1", "k2", "labels", "bounds", "bucket").agg(
            F.sum("n").alias("n"), F.sum("a").alias("a"), F.sum("total").alias("total")
        ),
    ]
    shaped = [_shaped(each) for each in grouped]
    merged = shaped[0].union(shaped[1]).union(shaped[2])
    return merged.withColumn("closed", F.expr(f"start + {window}L") <= _bound(nodes))


def _sketched(grouped: DataFrame) -> DataFrame:
    merged = grouped.withColumn("sketch", F.expr("kll_sketch_merge_double(fresh, kept)"))
    # At once: each call reads the whole sketch.
    merged = merged.withColumn("p", F.expr("kll_sketch_get_quantile_double(sketch, array(0.5D, 0.95D, 0.99D))"))
    return merged.selectExpr("*", "p[0] as p50", "p[1] as p95", "p[2] as p99")


def _shaped(rows: DataFrame) -> DataFrame:
    has = set(rows.columns)
    return rows.select(
        *((F.col(name) if name in has else F.lit(None)).cast(kind).alias(name) for name, kind in STATE.items())
    )


def _as(table: t.Table, rows: DataFrame) -> DataFrame:
    return rows.select(*(F.col(name).cast(kind).alias(name) for name, kind in table.columns.items()))
