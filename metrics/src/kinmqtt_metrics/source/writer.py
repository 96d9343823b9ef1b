"""Rows as MQTT messages: in one go, and as a stream.

A task publishes the rows of its partition over a connection of its own, in their order, and is done when the broker
has acknowledged every one of them. A task or a batch that is repeated publishes them again, with the same ids in the
user property :data:`.messages.ID`: at least once, and receivers can tell.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import uuid4

import pyarrow as pa
from attrs import frozen
from pyspark import TaskContext
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType

from kinmqtt_metrics.source.connection import Connection
from kinmqtt_metrics.source.endpoint import Endpoint
from kinmqtt_metrics.source.messages import COLUMNS, message_of, rows_of


@frozen(slots=True)
class Published(WriterCommitMessage):
    """So many messages of a partition were acknowledged."""

    messages: int


class Writer:
    """What both ways of writing share. Raises ``ValueError`` for columns that say nothing to it."""

    def __init__(self, options: Mapping[str, str], schema: StructType, overwrite: bool) -> None:
        if overwrite:
            raise ValueError("messages can't be overwritten: use mode('append'), or outputMode append or update")
        for name in ("topic", "payload"):
            if name not in schema.fieldNames():
                raise ValueError(f"column {name} is missing: format('kinmqtt') publishes {', '.join(COLUMNS)}")
        for column in schema:
            kind = column.dataType.simpleString()
            if kind not in COLUMNS.get(column.name, ()):
                wanted = " or ".join(COLUMNS.get(column.name, ())) or f"none; it publishes {', '.join(COLUMNS)}"
                raise ValueError(f"column {column.name} {kind}: format('kinmqtt') takes {wanted}")
        self._names = schema.fieldNames()
        self._endpoint = Endpoint.of(options)
        # A run in one go has no id of Spark's; tasks that are repeated share this one.
        self._run = uuid4().hex
        self._prefix = options.get("idPrefix", "")

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Published:
        """Publish a partition. Raises :class:`NotPublished`."""
        context = TaskContext.get()
        partition = context.partitionId() if context is not None else 0
        attempt = context.taskAttemptId() if context is not None else 0
        query = (context.getLocalProperty("sql.streaming.queryId") if context is not None else None) or self._run
        batch = (context.getLocalProperty("streaming.sql.batchId") if context is not None else None) or "0"
        # Two writes within one batch of foreachBatch have all of these in common, and need a prefix each.
        ids = f"{self._prefix}{query}-{batch}-{partition}"
        count = 0
        connection: Connection | None = None
        try:
            for rows in iterator:
                # All of them are looked at before the first is sent.
                messages = [
                    message_of(row, at, f"{ids}-{at}") for at, row in enumerate(rows_of(rows, self._names), count)
                ]
                if not messages:
                    continue
                if connection is None:
                    # A query that is started again counts its attempts from 0, and paho takes up the session that is
                    # there where its first try was refused: packet ids in that one would pass for known, and dropped.
                    once = uuid4().hex[:12]
                    client_id = f"{self._endpoint.client_id}-{query}-{partition}-{attempt}-{once}"
                    connection = Connection(self._endpoint, client_id)
                for message in messages:
                    connection.publish(message)
                count += len(messages)
            if connection is not None:
                connection.wait_for_all()
        finally:
            if connection is not None:
                connection.close()
        return Published(count)


class BatchWriter(Writer, DataSourceArrowWriter):
    """``df.write``."""

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """All is acknowledged already."""

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """What was published stays published: nobody can call a message back."""


class StreamWriter(Writer, DataSourceStreamArrowWriter):
    """``df.writeStream``."""

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """All is acknowledged already."""

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """What was published stays published; the batch is repeated with the same ids."""
