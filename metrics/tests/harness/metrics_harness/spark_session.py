"""A Spark session of a test module's own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from metrics_harness.running import FAST_JAVA
from metrics_harness.spark_environment import spark_environment

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextmanager
def spark_session(start: Callable[[], SparkSession]) -> Iterator[SparkSession]:
    """Yield what ``start`` makes, and end it together with its Java process.

    A process has one session at a time, and one Java process, which keeps the jars and options that it began with. So
    a module that left either would hand it to whichever module comes next in the same worker.
    """
    from pyspark import SparkContext

    assert SparkContext._gateway is None, "Spark runs in this process: its module must end it by spark_session()"
    os.environ.update(spark_environment())
    session = start()
    gateway: Any = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        # Java ends when nobody writes to it any more.
        gateway.proc.stdin.close()
        gateway.proc.wait(60)
        SparkContext._gateway = SparkContext._jvm = None


def small_session(cores: int, settings: Mapping[str, str]) -> SparkSession:
    """Start a session that starts fast, without its web page."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master(f"local[{cores}]").appName("kinmqtt-tests")
    options = {
        "spark.ui.enabled": "false",
        "spark.driver.extraJavaOptions": FAST_JAVA,
        "spark.sql.session.timeZone": "UTC",
    }
    session = builder.config(map={**options, **settings}).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
