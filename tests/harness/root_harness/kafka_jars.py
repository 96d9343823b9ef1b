"""The jars of Kafka, and those with which Spark speaks with Kafka and with S3, as Maven gets them.

Once for each user, and from then on from a folder of the user's cache.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from spi_harness.processes import needed

VERSION: Final = "4.1.0"
"""Kafka's version."""

DOWNLOAD_LIMIT_S: Final = 600.0

_POM: Final = """\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kinmqtt</groupId>
  <artifactId>jars-of-the-tests</artifactId>
  <version>1</version>
  <dependencies>
{dependencies}  </dependencies>
</project>
"""

_DEPENDENCY: Final = """\
    <dependency>
      <groupId>{group}</groupId>
      <artifactId>{artifact}</artifactId>
      <version>{version}</version>
{exclusions}    </dependency>
"""

_EXCLUSION: Final = """\
      <exclusions><exclusion><groupId>{group}</groupId><artifactId>{artifact}</artifactId></exclusion></exclusions>
"""


def kafka_jars() -> Path:
    """The folder with all jars of Kafka, 43 MB.

    Fails the test if Maven is not installed or can't download them.
    """
    return jars_of(f"kafka-{VERSION}", (f"org.apache.kafka:kafka_2.13:{VERSION}", "org.slf4j:slf4j-nop:1.7.36"))


def jars_of(name: str, dependencies: Sequence[str], without: str = "") -> Path:
    """A folder with the jars of these ``group:artifact:version``, and of what they need but ``without``.

    The first call of a user downloads them.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kinmqtt"
    folder = cache / name
    if folder.is_dir():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "kafka.lock").open("w") as lock:
        # Test workers beside each other come here at the same time.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            _download(cache, folder, _pom(dependencies, without))
    return folder


def _pom(dependencies: Sequence[str], without: str) -> str:
    exclusions = ""
    if without:
        group, artifact = without.split(":")
        exclusions = _EXCLUSION.format(group=group, artifact=artifact)
    made = ""
    for each in dependencies:
        group, artifact, version = each.split(":")
        made += _DEPENDENCY.format(group=group, artifact=artifact, version=version, exclusions=exclusions)
    return _POM.format(dependencies=made)


def _download(cache: Path, folder: Path, pom: str) -> None:
    work = Path(tempfile.mkdtemp(dir=cache))
    try:
        (work / "pom.xml").write_text(pom, encoding="utf-8")
        command = [needed("mvn", "maven"), "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        command += [f"-DoutputDirectory={work}/jars"]
        done = subprocess.run(
            command, cwd=work, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_LIMIT_S
        )
        assert done.returncode == 0, f"Maven has not got {folder.name}:\n{done.stdout}{done.stderr}"
        (work / "jars").rename(folder)
    finally:
        shutil.rmtree(work)
