"""Where records come from: the landing folder, or a topic of Kafka.

Each is a stream of Spark's, and a task's way to read what the stream names.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.pipeline.backlog import Backlog, LandingBacklog, TopicBacklog
from kinmqtt_metrics.pipeline.staging import Made, Staging

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from kinmqtt_metrics.pipeline.settings import PipelineSettings, Topic

CONNECTOR: Final = "org.apache.spark:spark-sql-kafka-0-10_2.13"
"""What Spark needs to read from Kafka, as Maven knows it; of Spark's own version."""


class Source(ABC):
    """Where records come from."""

    def __init__(self, name: str, root: str) -> None:
        """``name`` is what can't change for a folder of tables; ``root`` the folder that tasks read from, if any."""
        self.name = name
        self.root = root

    @abstractmethod
    def stream(self, spark: SparkSession) -> DataFrame:
        """Rows that name records, or contain them."""

    @abstractmethod
    def backlog(self, checkpoint: Path) -> Backlog:
        """What the query with this checkpoint has not read."""

    @abstractmethod
    def stage(self, staging: Staging) -> Callable[[Iterable[Any]], Iterator[Made]]:
        """A task: takes rows of the stream."""


class LandingSource(Source):
    """The landing folder, which tasks read themselves."""

    def __init__(self, settings: PipelineSettings) -> None:
        assert settings.landing is not None
        super().__init__("landing", str(settings.landing.resolve()))
        self._segments = settings.segments

    def stream(self, spark: SparkSession) -> DataFrame:
        """The segments as a stream, with files that are none."""
        from kinmqtt_metrics.source import KinmqttSource

        # Spark's own search finds no format at all where another package's has a mistake, or Python starts slowly.
        spark.dataSource.register(KinmqttSource)
        return (
            spark.readStream.format("kinmqtt")
            .option("rows", "segments")
            .option("rejected", "rows")
            .option("maxFilesPerTrigger", self._segments)
            .load(self.root)
        )

    def backlog(self, checkpoint: Path) -> Backlog:
        """By the names of segments."""
        return LandingBacklog(checkpoint, Path(self.root))

    def stage(self, staging: Staging) -> Callable[[Iterable[Any]], Iterator[Made]]:
        """Rows are segments."""
        return staging.segments


class KafkaSource(Source):
    """A topic, whose records Spark's own connector reads."""

    def __init__(self, spark: SparkSession, topic: Topic, records: int) -> None:
        super().__init__(f"topic {topic.name}", "")
        self._spark = spark
        # Records that Kafka has deleted are told as missing at the end of a run, by their numbers.
        self.options = {
            **kafka_options(spark, topic),
            "subscribe": topic.name,
            "failOnDataLoss": "false",
        }
        self._records = records

    def stream(self, spark: SparkSession) -> DataFrame:
        """From the topic's beginning on."""
        reading = spark.readStream.format("kafka").options(**self.options)
        reading = reading.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", self._records)
        return reading.load().select("topic", "partition", "offset", "value")

    def backlog(self, checkpoint: Path) -> Backlog:
        """By offsets."""
        return TopicBacklog(self._spark, self.options, checkpoint)

    def stage(self, staging: Staging) -> Callable[[Iterable[Any]], Iterator[Made]]:
        """Rows have the records."""
        return staging.values


def kafka_options(spark: SparkSession, topic: Topic) -> dict[str, str]:
    """Spark's options for a topic's servers, with those of a file as Kafka's own tools take it.

    Raises :class:`PipelineError`.
    """
    jvm = spark.sparkContext._jvm
    assert jvm is not None
    said: dict[str, str] = {}
    if topic.config is not None:
        properties = jvm.java.util.Properties()
        try:
            # Java reads it, as the format has its own rules for signs and lines.
            reader = jvm.java.io.FileReader(str(topic.config.resolve()))
            try:
                properties.load(reader)
            finally:
                reader.close()
        except Exception as error:
            raise PipelineError(f"{topic.config} (--kafka-config) can't be read as properties of Kafka") from error
        said = {f"kafka.{name}": properties.getProperty(name) for name in properties.stringPropertyNames()}
    return said | {"kafka.bootstrap.servers": topic.servers}


def source_of(settings: PipelineSettings, spark: SparkSession) -> Source:
    """The one that was asked for. Raises :class:`PipelineError`."""
    if settings.topic is None:
        return LandingSource(settings)
    return KafkaSource(spark, settings.topic, settings.records)
