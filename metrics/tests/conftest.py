"""What tests of Spark's side share: one session, as it starts fast."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from metrics_harness.spark_environment import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, with two cores, without its web page."""
    from pyspark.sql import SparkSession

    from kinmqtt_metrics.source import KinmqttSource

    os.environ.update(spark_environment())
    session = (
        SparkSession.builder.master("local[2]")
        .appName("kinmqtt-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.extraJavaOptions", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("ERROR")
    # As the pipeline does: Spark's own search may be given up where all processors are busy.
    session.dataSource.register(KinmqttSource)
    yield session
    session.stop()
