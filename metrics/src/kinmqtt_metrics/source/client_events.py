"""The broker's client events, which event_kafka writes to Kafka, as rows of Spark's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DATA: Final[dict[str, str]] = {
    "address": "string",
    "clean_start": "boolean",
    "version": "int",
    "username": "string",
    "listener": "string",
    "expiry_s": "bigint",
    "keep_alive_s": "bigint",
    "session_present": "boolean",
    "created_at": "double",
    "by": "string",
    "reason": "int",
    "expires_at": "double",
    "filter": "string",
    "qos": "int",
    "no_local": "boolean",
    "retain_as_published": "boolean",
    "retain_handling": "int",
    "identifier": "bigint",
    "topic": "string",
    "bytes": "bigint",
    "message_id": "string",
    "messages": "bigint",
}
"""What events of all kinds may say, with types in Spark's words; what a kind doesn't say is null (docs/event.md)."""

_VALUE: Final = (
    "node string, kind string, client_id string, version struct<epoch: bigint, counter: bigint>, at double, "
    f"data struct<{', '.join(f'{name}: {kind}' for name, kind in DATA.items())}>, schema_version int"
)

_ID: Final = "string(try_element_at(filter(headers, header -> header.key = 'ce_id'), 1).value)"


def events(
    spark: SparkSession,
    servers: str,
    topic: str = "kinmqtt.events",
    *,
    options: Mapping[str, str] | None = None,
    watermark: str | None = "1 hour",
    stream: bool = True,
) -> DataFrame:
    """Return client events as a streaming DataFrame; with ``stream=False`` those that are there, as a batch.

    Columns: ``id`` (the CloudEvents id), ``node``, ``kind``, ``client_id``, ``epoch`` and ``counter`` (the version,
    which orders the events of a client), ``at`` (timestamp), ``data`` (a struct of :data:`DATA`), ``schema_version``,
    and Kafka's ``partition`` and ``offset``. Records that are no events are left out.

    ``servers`` are some of Kafka's brokers, as ``host:port``, separated by commas. ``options`` are passed to Spark's
    source: ``kafka.security.protocol`` and other properties of Kafka's clients after ``kafka.``,
    ``startingOffsets`` (``earliest`` here unless given), ``maxOffsetsPerTrigger`` and so on.

    An event may be in Kafka twice, with the same id. A batch has it once. A stream has it once if the second comes
    within ``watermark`` after the first, by the time in ``at``; and it leaves out events that are older than the
    newest by more than that. So it should be longer than a broker may be without Kafka. ``None`` leaves all in.

    Spark needs its connector to Kafka (``spark-sql-kafka-0-10``); without it, it raises ``AnalysisException``.
    """
    reading = (spark.readStream if stream else spark.read).format("kafka")
    given = {"startingOffsets": "earliest", **(options or {})}
    given |= {"kafka.bootstrap.servers": servers, "subscribe": topic, "includeHeaders": "true"}
    read = reading.options(**given).load()
    rows = read.selectExpr(f"{_ID} as id", f"from_json(string(value), '{_VALUE}') as event", "partition", "offset")
    found = rows.selectExpr(
        "id",
        "event.node",
        "event.kind",
        "event.client_id",
        "event.version.epoch",
        "event.version.counter",
        "timestamp_micros(try_cast(round(event.at * 1000000) as bigint)) as at",
        "event.data",
        "event.schema_version",
        "partition",
        "offset",
    ).where("id is not null and node is not null and kind is not null and at is not null")
    if watermark is None:
        return found
    if not stream:
        return found.dropDuplicates(["id"])
    return found.withWatermark("at", watermark).dropDuplicatesWithinWatermark(["id"])
