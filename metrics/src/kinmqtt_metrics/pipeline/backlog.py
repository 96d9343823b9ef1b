"""What is there and not read yet: a node is silent only where nothing of it waits to be read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kinmqtt_metrics.source.folder import Folder
from kinmqtt_metrics.source.offsets import Taken

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Backlog(Protocol):
    """What a source has that was not read."""

    def is_empty(self, batch: int) -> bool:
        """Whether all was read up to this batch."""
        ...


class LandingBacklog:
    """Looks at Spark's checkpoint and at the landing folder."""

    def __init__(self, checkpoint: Path, landing: Path) -> None:
        self._offsets = checkpoint / "offsets"
        self._folder = Folder(str(landing))

    def _taken(self, batch: int) -> Taken:
        """What had been taken when a batch was planned; raises ``OSError`` and ``ValueError``."""
        return Taken.from_json(json.loads((self._offsets / str(batch)).read_text("utf-8").splitlines()[-1]))

    def is_empty(self, batch: int) -> bool:
        """Whether nothing is published that was not read up to this batch."""
        taken = self._taken(batch)
        return all(key in taken for key in self._folder.paths())


class TopicBacklog:
    """Looks at Spark's checkpoint and at the topic."""

    def __init__(self, spark: SparkSession, options: dict[str, str], checkpoint: Path) -> None:
        self._reading = spark.read.format("kafka").options(**options)
        self._offsets = checkpoint / "offsets"

    def is_empty(self, batch: int) -> bool:
        """Ask Kafka for what follows the offsets of the batch."""
        offsets = (self._offsets / str(batch)).read_text("utf-8").splitlines()[-1]
        try:
            return self._reading.option("startingOffsets", offsets).load().isEmpty()
        except Exception:
            # A topic that has more partitions since then, say: the next batch has their offsets. Until it is known
            # better nobody is silent.
            return False
