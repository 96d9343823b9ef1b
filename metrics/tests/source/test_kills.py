"""A driver that is killed, and its checkpoint."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

from kinmqtt_metrics.landing import SegmentName
from metrics_harness.segments import BOOT, event, line, publish, write
from metrics_harness.spark_environment import spark_environment

_LIMIT_S = 240.0


def _drive(landing: Path, folder: Path, *last: str) -> subprocess.CompletedProcess[str]:
    # Its JVM has the same output: it has ended when that has.
    return subprocess.run(
        [sys.executable, str(Path(__file__).with_name("driver.py")), str(landing), str(folder), *last],
        env=os.environ | spark_environment(),
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )


def test_after_kills_every_row_is_there_once(tmp_path: Path) -> None:
    """A driver that is killed in a batch repeats it with the same rows, whatever has arrived since, and goes on."""
    landing = tmp_path / "landing"
    for number in (1, 2, 4, 5):
        publish(landing, number)
    write(landing, SegmentName("broker-1", BOOT, 6), [line(event(51)), b'{"torn', b"\n", line(event(52))])

    first = _drive(landing, tmp_path, "1")
    publish(landing, 3)
    publish(landing, 1, node="broker-2")
    publish(landing, 1, date="2026-11-22")
    second = _drive(landing, tmp_path, "3")
    publish(landing, 4, date="2026-11-20")
    third = _drive(landing, tmp_path)

    assert (first.returncode, second.returncode, third.returncode) == (-signal.SIGKILL, -signal.SIGKILL, 0), (
        first.stderr + second.stderr + third.stderr
    )
    assert [said for run in (second, third) for said in run.stdout.splitlines() if "repeated" in said] == [
        "repeated 1 the same",
        "repeated 3 the same",
    ]
    rows = [json.loads(row) for file in tmp_path.glob("batch-*") for row in file.read_text().splitlines()]
    good = sorted((row["node"], row["seq"]) for row in rows if row["kind"] != "rejected")
    expected = [("broker-1", seq) for seq in range(1, 53)] + [("broker-2", seq) for seq in range(1, 11)]
    assert good == sorted(expected)
    assert [row["value"] for row in rows if row["kind"] == "rejected"] == [2]
