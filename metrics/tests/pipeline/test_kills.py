"""The pipeline killed at random moments: the driver, its Java process, or both. Afterwards every table is exact.

``KINMQTT_SPARK_KILLS`` says how often each (20 for the long run; 1 by default, as each start of Spark takes seconds).
"""

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
from metrics_harness.running import MOMENTS, begun, children, command, reached, until
from metrics_harness.spark_environment import spark_environment

KILLS: Final = int(os.environ.get("KINMQTT_SPARK_KILLS", "1"))


def test_killed_at_random_moments_the_tables_are_exact(tmp_path: Path) -> None:
    """Nothing is lost, doubled or different, whatever is killed in whatever moment of a batch."""
    random = Random(int(os.environ.get("KINMQTT_SPARK_KILLS_SEED", "21")))
    (tmp_path / "landing").mkdir()
    landing, tables = Landing(tmp_path / "landing"), tmp_path / "tables"
    lives = [Life("a", f"{1:016x}", random), Life("b", f"{2:016x}", random)]
    said: list[Record] = []
    # Each alone is killed beside a real broker, in tests/test_metrics_kills.py.
    kinds = ["driver", "jvm", "both"] * KILLS if KILLS > 1 else ["both"]
    environment = os.environ | spark_environment()

    for kind in kinds:
        steps = tables / t.STATE / "steps"
        before = begun(steps)
        moment = random.choice(MOMENTS)
        with subprocess.Popen(
            command(tables, landing.folder, "--segments", "4", "--trigger-s", "0"),
            env=environment,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                for life in lives:
                    for piece in pieces(life.ticks(30), random):
                        landing.publish(piece)
                        said += piece
                until(partial(reached, steps, moment, before), process)
                time.sleep(random.uniform(0, 1))
                jvms = children(process.pid)
                if kind in ("jvm", "both"):
                    for jvm in jvms:
                        os.kill(jvm, signal.SIGKILL)
                if kind in ("driver", "both"):
                    process.kill()
                process.wait(120)
                if kind == "jvm":
                    assert process.returncode == 1
            finally:
                if process.poll() is None:
                    process.kill()

    subprocess.run(command(tables, landing.folder, "--final"), env=environment, check=True, timeout=500)
    closed, late, _ = recomputed.windows([said], 10, 10, final=True)
    expected = recomputed.tables(closed, 10)
    expected["raw"] = recomputed.raw(said)
    assert not late
    assert recomputed.read(tables, t.LATE) == []
    for table in t.TABLES:
        have, want = recomputed.read(tables, table), expected.get(table.name, [])
        assert recomputed.comparable(have) == recomputed.comparable(want), table.name
