"""The jars with which Spark reads from Kafka and writes to S3, of the Spark that is installed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from root_harness.kafka_jars import jars_of

_SPARK: Final = "4.2.0"
"""The newest connector; Spark 4.3 reads with it."""

_HADOOP: Final = "3.5.0"
"""That of Spark 4.3's jars."""

_AWS: Final = "2.35.4"
"""What that Hadoop is made with."""

_AWS_PARTS: Final = ("s3", "s3-transfer-manager", "sts", "apache-client", "netty-nio-client")
"""Of AWS's whole SDK (600 MB) what S3A needs."""


def kafka_connector() -> list[Path]:
    """For ``format("kafka")``, 20 MB."""
    folder = jars_of(f"spark-kafka-{_SPARK}", (f"org.apache.spark:spark-sql-kafka-0-10_2.13:{_SPARK}",))
    return _missing(folder)


def s3_connector() -> list[Path]:
    """For ``s3a://``, 30 MB."""
    parts = (f"software.amazon.awssdk:{part}:{_AWS}" for part in _AWS_PARTS)
    dependencies = (f"org.apache.hadoop:hadoop-aws:{_HADOOP}", *parts)
    folder = jars_of(f"hadoop-aws-{_HADOOP}", dependencies, without="software.amazon.awssdk:bundle")
    return _missing(folder)


def _missing(folder: Path) -> list[Path]:
    """Of the jars in a folder those that Spark does not have, in whatever version."""
    import pyspark

    has = {_artifact(path) for path in (Path(pyspark.__file__).parent / "jars").glob("*.jar")}
    return [path for path in sorted(folder.glob("*.jar")) if _artifact(path) not in has]


def _artifact(jar: Path) -> str:
    return re.split(r"-[0-9]", jar.name)[0]
