"""What Spark asks for readers and writers of ``format("kinmqtt")``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

# Spark imports this whenever it looks for any format at all: what needs more is imported when it is asked for.
if TYPE_CHECKING:
    from kinmqtt_metrics.source.reader import BatchReader, StreamReader
    from kinmqtt_metrics.source.writer import BatchWriter, StreamWriter


class KinmqttSource(DataSource):
    """What Spark asks for readers and writers."""

    @classmethod
    def name(cls) -> str:
        """The format's."""
        return "kinmqtt"

    def schema(self) -> str:
        """All fields of a record. With ``.schema("t bigint, node string")`` the others are not read."""
        from kinmqtt_metrics.source.reader import Options

        fields = Options(self.options).fields
        return ", ".join(f"`{name}` {kind}" for name, kind in fields.items())

    def reader(self, schema: StructType) -> BatchReader:
        """In one go."""
        from kinmqtt_metrics.source.reader import BatchReader, Options

        return BatchReader(Options(self.options), schema)

    def streamReader(self, schema: StructType) -> StreamReader:
        """As a stream."""
        from kinmqtt_metrics.source.reader import Options, StreamReader

        return StreamReader(Options(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """In one go."""
        from kinmqtt_metrics.source.writer import BatchWriter

        return BatchWriter(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        """As a stream."""
        from kinmqtt_metrics.source.writer import StreamWriter

        return StreamWriter(self.options, schema, overwrite)
