"""The jars of Kafka, as Maven gets them: once for each user, and from then on from a folder of the user's cache."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final

from spi_harness.processes import needed

VERSION: Final = "4.1.0"
"""Kafka's version."""

DOWNLOAD_LIMIT_S: Final = 600.0

_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kinmqtt</groupId>
  <artifactId>kafka-of-the-tests</artifactId>
  <version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId>
      <artifactId>kafka_2.13</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId>
      <artifactId>slf4j-nop</artifactId>
      <version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def kafka_jars() -> Path:
    """The folder with all jars; the first call of a user downloads them, 43 MB.

    Fails the test if Maven is not installed or can't download them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinmqtt"
    folder = cache / f"kafka-{VERSION}"
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        # Test workers beside each other come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _download(cache, folder)
    return folder


def _download(cache: Path, folder: Path) -> None:
    work = Path(tempfile.mkdtemp(dir=cache))
    try:
        (work / "pom.xml").write_text(_POM, encoding="utf-8")
        command = [needed("mvn", "maven"), "-q", "-B"]
        command += ["dependency:copy-dependencies", f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_LIMIT_S
        )
        assert done.returncode == 0, f"Maven has not got Kafka:\n{done.stdout}{done.stderr}"
        (work / "jars").rename(folder)
    finally:
        shutil.rmtree(work)
