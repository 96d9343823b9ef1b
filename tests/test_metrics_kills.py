"""Broker, driver and Java killed at random moments: the tables are what the brokers' published records come to.

``KINMQTT_SPARK_KILLS`` says how often each is killed (20 for the long run; by default broker and Java once, as each
start of Spark takes seconds), ``KINMQTT_SPARK_KILLS_SEED`` when.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow.parquet as pq

from core_harness.brokers import BrokerProcess, broker_command
from kinmqtt_metrics import tables as t
from kinmqtt_metrics.landing import OPEN, published
from metrics_harness import recomputed
from metrics_harness.running import FAST_JAVA, MOMENTS, begun, children, command, reached, until
from metrics_harness.spark_environment import spark_environment
from root_harness.smallclient import SmallClient
from spi_harness.processes import free_port

KILLS: Final = int(os.environ.get("KINMQTT_SPARK_KILLS", "1"))
WINDOW_S: Final = 5
LIMIT_S: Final = 300.0

SPARK_READS: Final = """
import sys
from pathlib import Path
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from kinmqtt_metrics import tables as t
options = {"spark.ui.enabled": "false", "spark.driver.extraJavaOptions": sys.argv[3]}
spark = SparkSession.builder.master("local[1]").config(map=options).getOrCreate()
for table in t.TABLES:
    files = [str(path) for path in table.files(Path(sys.argv[1]))]
    if files:
        pq.write_table(spark.read.parquet(*files).toArrow(), f"{sys.argv[2]}/{table.name}.parquet")
"""


@contextmanager
def talking(port: int) -> Iterator[None]:
    """A client that comes, subscribes, publishes and goes, again and again, whether the broker lives or not."""
    ending = threading.Event()

    def talk() -> None:
        number = 0
        while not ending.is_set():
            number += 1
            try:
                with SmallClient(port, f"c{number % 7}") as client:
                    for topic in range(20):
                        client.publish(f"t/{topic % 5}", b"x" * (number % 100))
            except (OSError, AssertionError, EOFError):
                # The broker was killed just now.
                ending.wait(0.1)
            # So few that sketches hold each of their values.
            ending.wait(0.05)

    thread = threading.Thread(target=talk)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def said(landing: Path) -> list[dict[str, Any]]:
    """All published records; of each life each of them once, and none is missing."""
    found = [json.loads(line) for path in published(landing) for line in path.read_bytes().splitlines()]
    lives = defaultdict(list)
    for record in found:
        lives[record["boot"]].append(record["seq"])
    for boot, numbers in lives.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), boot
    return found


def test_whatever_is_killed_the_tables_are_what_was_published(tmp_path: Path) -> None:
    """Nothing that a broker published is lost, doubled or different, read by Spark and by readers without it."""
    random = Random(int(os.environ.get("KINMQTT_SPARK_KILLS_SEED", "11")))
    landing, tables, by_spark = tmp_path / "landing", tmp_path / "tables", tmp_path / "by_spark"
    landing.mkdir()
    by_spark.mkdir()
    settings = tmp_path / "kinmqtt.toml"
    settings.write_text(
        f'[broker]\nsys_interval_s = 1\n[plugins.metrics]\nlanding = "{landing}"\nroll_s = 2\nkeep_free_bytes = 0\n',
        encoding="utf-8",
    )
    port = free_port()
    environment = os.environ | spark_environment()
    options = ("--window-s", str(WINDOW_S), "--watermark-s", "2")
    beside = command(tables, landing, *options, "--trigger-s", "1", "--segments", "4")
    # A driver is killed in metrics/tests/pipeline/test_kills.py too.
    kinds = ["broker", "driver", "jvm"] * KILLS if KILLS > 1 else ["broker", "jvm"]
    random.shuffle(kinds)
    steps = tables / t.STATE / "steps"

    with ExitStack() as stack:

        def broker_begins() -> BrokerProcess:
            broker = BrokerProcess(broker_command(port, "--config", str(settings)), port)
            stack.callback(broker.end)
            broker.wait_for_line(r"listening on ")
            return broker

        def pipeline_begins() -> subprocess.Popen[bytes]:
            pipeline = subprocess.Popen(beside, env=environment, stderr=subprocess.DEVNULL)
            stack.callback(pipeline.wait)
            stack.callback(pipeline.kill)
            return pipeline

        broker, pipeline = broker_begins(), pipeline_begins()
        with talking(port):
            for kind in kinds:
                until(partial(reached, steps, random.choice(MOMENTS), begun(steps)), pipeline)
                # When: that is the random's to say.
                threading.Event().wait(random.uniform(0, 1))
                if kind == "broker":
                    broker.signal(signal.SIGKILL)
                    broker.wait()
                    broker = broker_begins()
                    continue
                for java in children(pipeline.pid) if kind == "jvm" else ():
                    os.kill(java, signal.SIGKILL)
                if kind == "driver":
                    pipeline.kill()
                ended = pipeline.wait(LIMIT_S)
                assert ended == (1 if kind == "jvm" else -signal.SIGKILL)
                pipeline = pipeline_begins()
            until(partial(reached, steps, "", begun(steps)), pipeline)
        broker.stop()
        pipeline.send_signal(signal.SIGTERM)
        assert pipeline.wait(LIMIT_S) == 0

    last = subprocess.run([*command(tables, landing, *options), "--final"], env=environment, timeout=LIMIT_S)
    assert last.returncode == 0
    subprocess.run(
        [sys.executable, "-c", SPARK_READS, tables, by_spark, FAST_JAVA],
        env=environment,
        check=True,
        timeout=LIMIT_S,
        stderr=subprocess.DEVNULL,
    )
    assert not list(landing.glob(OPEN + "*"))
    records = said(landing)
    assert len({record["boot"] for record in records}) == 1 + kinds.count("broker")
    closed, late, left = recomputed.windows([records], WINDOW_S, 2, final=True)
    assert not late and not left
    expected = recomputed.tables(closed, WINDOW_S) | {"raw": recomputed.raw(records)}
    for table in t.TABLES:
        want = recomputed.comparable(expected.get(table.name, []))
        assert recomputed.comparable(recomputed.read(tables, table)) == want, table.name
        spark_file = by_spark / f"{table.name}.parquet"
        have = pq.read_table(spark_file).to_pylist() if spark_file.exists() else []
        assert recomputed.comparable(have) == want, f"{table.name}, by Spark"
