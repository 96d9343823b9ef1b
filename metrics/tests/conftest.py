"""What tests of Spark's side share: a session for each module, as it starts fast."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from metrics_harness.spark_session import small_session, spark_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="module")
def spark() -> Iterator[SparkSession]:
    """A session with two cores that knows the format ``kinmqtt``."""
    from kinmqtt_metrics.source import KinmqttSource

    with spark_session(lambda: small_session(2, {"spark.sql.shuffle.partitions": "1"})) as session:
        # As the pipeline does: Spark's own search may be given up where all processors are busy.
        session.dataSource.register(KinmqttSource)
        yield session
