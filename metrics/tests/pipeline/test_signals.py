"""The pipeline, asked to end in the middle of a batch: one line, no stack of Java's, and nothing lost or doubled."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Final

from kinmqtt_metrics import tables as t
from kinmqtt_metrics.record import Record
from metrics_harness import recomputed
from metrics_harness.landing_data import Landing, Life, pieces
from metrics_harness.running import MOMENTS, begun, command, reached, until
from metrics_harness.spark_environment import spark_environment

SENT = (
    # Of ^C Java hears nothing, as Spark sees to that; of what ends a service it does.
    (signal.SIGINT, os.kill, "^C"),
    (signal.SIGTERM, os.kill, "SIGTERM"),
    (signal.SIGINT, os.killpg, "^C"),
    (signal.SIGTERM, os.killpg, "SIGTERM"),
)
# Each start of Spark takes seconds: the ordinary run has each signal, and each way to send one, once.
KILLS: Final = int(os.environ.get("KINMQTT_SPARK_KILLS", "1"))


def test_a_signal_in_the_middle_of_a_batch_is_told_in_one_line(tmp_path: Path) -> None:
    """Sent to the driver, or to its Java process too; the next run goes on, and in the end every table is exact."""
    random = Random(int(os.environ.get("KINMQTT_SPARK_KILLS_SEED", "22")))
    (tmp_path / "landing").mkdir()
    landing, tables = Landing(tmp_path / "landing"), tmp_path / "tables"
    life, said = Life("a", f"{1:016x}", random), list[Record]()
    environment = os.environ | spark_environment()
    steps = tables / t.STATE / "steps"

    for number, send, name in SENT if KILLS > 1 else SENT[1:3]:
        before = begun(steps)
        for piece in pieces(life.ticks(60), random):
            landing.publish(piece)
            said += piece
        with subprocess.Popen(
            command(tables, landing.folder, "--segments", "4", "--trigger-s", "0"),
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                until(partial(reached, steps, MOMENTS[1], before), process)
                time.sleep(random.uniform(0, 0.5))
                send(process.pid, number)
                _, stderr = process.communicate(timeout=120)
            finally:
                if process.poll() is None:
                    process.kill()

        lines = stderr.splitlines()
        assert process.returncode == 0, stderr
        assert lines[-1].startswith(f"ended by {name}; the same command goes on from here"), stderr
        # A batch that was done when the signal came has its line.
        [began] = [place for place, line in enumerate(lines) if line.startswith("reading ")]
        others = [line for line in lines[began + 1 : -1] if not line.startswith(("batch ", "Warning: Java versions"))]
        assert others == []

    subprocess.run(command(tables, landing.folder, "--final"), env=environment, check=True, timeout=500)
    closed, late, _ = recomputed.windows([said], 10, 10, final=True)
    expected = recomputed.tables(closed, 10)
    expected["raw"] = recomputed.raw(said)
    assert not late
    for table in t.TABLES:
        have, want = recomputed.read(tables, table), expected.get(table.name, [])
        assert recomputed.comparable(have) == recomputed.comparable(want), table.name
