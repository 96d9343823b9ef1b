"""What tests of Spark's side share: one session, as it starts fast."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_JAVA: Final = Path("/usr/lib/jvm/java-17-openjdk-amd64")


def spark_environment() -> dict[str, str]:
    """What a process that starts Spark needs around it."""
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    if "JAVA_HOME" not in os.environ and _JAVA.is_dir():
        settings["JAVA_HOME"] = str(_JAVA)
    return settings


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One session for all tests, with two cores, without its web page."""
    from pyspark.sql import SparkSession

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
    yield session
    session.stop()
