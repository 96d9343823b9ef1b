"""What a process that starts Spark needs around it."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Final

_JAVA: Final = Path("/usr/lib/jvm/java-17-openjdk-amd64")


def spark_environment() -> dict[str, str]:
    """What a process that starts Spark needs around it."""
    settings = {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"}
    settings["SPARK_LAUNCHER_OPTS"] = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
    if "JAVA_HOME" not in os.environ and _JAVA.is_dir():
        settings["JAVA_HOME"] = str(_JAVA)
    return settings
