"""A standalone cluster, started from the pip package, and a second driver beside the first."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

from kinmqtt_metrics import tables as t
from metrics_harness import recomputed
from metrics_harness.landing_data import Landing, Life, pieces
from metrics_harness.running import FAST_JAVA, command, until
from metrics_harness.spark_environment import spark_environment
from spi_harness.processes import free_port


@contextmanager
def started(program: list[str], log: Path, environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, until the block ends."""
    with log.open("wb") as file, subprocess.Popen(program, env=environment, stdout=file, stderr=file) as process:
        try:
            yield process
        finally:
            process.terminate()
            process.wait(60)


def test_a_cluster_makes_the_same_tables(tmp_path: Path) -> None:
    """--master spark://… is the same pipeline: a master and two workers, the workers' Python with our package."""
    import pyspark

    home = Path(pyspark.__file__).parent
    environment = (
        os.environ
        | spark_environment()
        | {
            "SPARK_HOME": str(home),
            "SPARK_LOCAL_DIRS": str(tmp_path / "spark"),
            "SPARK_DAEMON_JAVA_OPTS": FAST_JAVA,
        }
    )
    port, page = free_port(), free_port()
    java = "org.apache.spark.deploy."
    (tmp_path / "landing").mkdir()
    landing, random = Landing(tmp_path / "landing"), Random(8)
    said = []
    for number, node in enumerate(("a", "b"), 1):
        records = Life(node, f"{number:016x}", random).ticks(40)
        said += records
        for piece in pieces(records, random, most=200):
            landing.publish(piece)
    spark_class = str(home / "bin" / "spark-class")
    with ExitStack() as running:
        address = ["--host", "127.0.0.1"]
        program = [spark_class, f"{java}master.Master", *address, "--port", str(port), "--webui-port", str(page)]
        master = running.enter_context(started(program, tmp_path / "master.log", environment))
        for number in range(2):
            program = [spark_class, f"{java}worker.Worker", *address, "--cores", "1", "--memory", "700m"]
            program += [
                "--webui-port",
                "0",
                "--work-dir",
                str(tmp_path / f"work{number}"),
                f"spark://127.0.0.1:{port}",
            ]
            running.enter_context(started(program, tmp_path / f"worker{number}.log", environment))

        def both_there() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                    return b'"aliveworkers" : 2' in answer.read()
            except OSError:
                return False

        until(both_there, master)
        more: tuple[str, ...] = (
            "--final",
            "--master",
            f"spark://127.0.0.1:{port}",
            "--conf",
            "spark.executor.memory=600m",
        )
        more += ("--conf", f"spark.executor.extraJavaOptions={FAST_JAVA}")
        done = subprocess.run(
            command(tmp_path / "tables", landing.folder, *more),
            env=environment,
            timeout=500,
            capture_output=True,
            text=True,
        )

    assert done.returncode == 0, done.stderr
    closed, _, _ = recomputed.windows([said], 10, 10, final=True)
    expected = recomputed.tables(closed, 10)
    expected["raw"] = recomputed.raw(said)
    for table in t.TABLES:
        have, want = recomputed.read(tmp_path / "tables", table), expected.get(table.name, [])
        assert recomputed.comparable(have) == recomputed.comparable(want), table.name


def test_a_second_driver_is_refused_while_the_first_runs(tmp_path: Path) -> None:
    """Two pipelines on one folder of tables would write everything twice: the second ends at once, and says why."""
    (tmp_path / "landing").mkdir()
    tables = tmp_path / "tables"
    program = command(tables, tmp_path / "landing")
    environment = os.environ | spark_environment()
    with started([*program], tmp_path / "first.log", environment) as first:
        until(
            lambda: (tables / ".pipeline" / "lock").exists() and (tables / ".pipeline" / "lock").read_text() != "",
            first,
        )
        began = time.monotonic()
        second = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=120)
        took = time.monotonic() - began

    assert second.returncode == 1
    assert f"process {first.pid} already writes to {tables}" in second.stderr
    assert took < 60, f"{sys.executable} did not end at once"
