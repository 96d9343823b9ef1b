"""The pipeline as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

FAST_JAVA: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
FAST: Final = f"spark.driver.extraJavaOptions={FAST_JAVA}"


def command(tables: Path, landing: Path, *more: str) -> list[str]:
    """The pipeline as people start it, with a Java that starts fast."""
    program = [sys.executable, "-m", "kinmqtt_metrics.command", "pipeline", "run"]
    return [*program, "--landing", str(landing), "--tables", str(tables), "--conf", FAST, *more]


def children(process: int) -> list[int]:
    """The Java process of a driver."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                status = (entry / "stat").read_text()
                if int(status.rpartition(")")[2].split()[1]) == process and "(java)" in status:
                    found.append(int(entry.name))
            except OSError:
                continue
    return found


def until(condition: Callable[[], bool], process: subprocess.Popen[Any], limit_s: float = 240) -> None:
    """Wait for what must become true while a process runs."""
    end = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < end, "nothing happened"
        assert process.poll() is None, f"the pipeline ended by itself: {process.returncode}"
        time.sleep(0.02)


MOMENTS: Final = (".making-*", ".making-*/work/read/*.parquet", ".making-*/state/*", ".making-*/tables/*", "")
"""What is there to be seen at the beginning, while and at the end of a batch; nothing: when it counts."""


def begun(steps: Path) -> set[str]:
    """The steps that are there, and those that were begun."""
    return {path.name for path in steps.glob("*")} | {path.name for path in steps.glob(".*")}


def reached(steps: Path, moment: str, before: set[str]) -> bool:
    """Whether a batch has come so far that was not there ``before``, or one is past it already."""
    fresh = {path.name for path in steps.glob("[0-9]*")} - before
    if fresh or not moment:
        return bool(fresh)
    return any(path.relative_to(steps).parts[0] not in before for path in steps.glob(moment))
