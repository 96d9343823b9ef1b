"""From a load generator's messages to a page: what the tables say is what was sent, and what the broker counted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from base64 import b64decode
from contextlib import ExitStack
from pathlib import Path

import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from core_harness.brokers import running_broker
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5, Puback, Publish, Subscribe, SubscribeRequest
from kinmqtt_metrics import tables
from kinmqtt_metrics.command import main
from kinmqtt_metrics.landing import published
from metrics_harness.running import command
from metrics_harness.spark_environment import spark_environment
from spi_harness.processes import wait_until

ROOT = Path(__file__).resolve().parents[1]
SECONDS = float(os.environ.get("KINMQTT_END_TO_END_S", "6"))
"""How long the load lasts."""

RUNS = ("-P 3 -S 3 -T 3 -q 0 -r 3000", "-P 2 -S 4 -T 2 -q 1 -r 1000", "-P 2 -S 2 -T 2 -q 2 -r 500")
"""Publishers, subscribers and topics of the generator, QoS, and messages a second."""

LIMIT_S = 300.0


@pytest.fixture
def generator(tmp_path: Path) -> Path:
    """The load generator."""
    built = tmp_path / "mqload"
    compiler = shutil.which("cc") or shutil.which("gcc")
    assert compiler is not None, "the load generator is written in C"
    subprocess.run([compiler, "-O2", "-o", built, ROOT / "benchmarks" / "mqload.c"], check=True)
    return built


def total(folder: Path, table: tables.Table, column: str, **where: str) -> int:
    """The sum of a column over rows in which others have these values."""
    found = 0
    for file in table.files(folder):
        rows = pq.read_table(file)
        for key, value in where.items():
            rows = rows.filter(pc.equal(rows[key], value))
        found += pc.sum(rows[column]).as_py() or 0
    return found


def last(folder: Path, name: str) -> int:
    """The highest value of a counter of the broker's own."""
    found = 0
    for file in tables.RAW.files(folder):
        rows = pq.read_table(file, columns=["kind", "name", "value"])
        rows = rows.filter(pc.and_(pc.equal(rows["kind"], "counter"), pc.equal(rows["name"], name)))
        found = max(found, pc.max(rows["value"]).as_py() or 0)
    return found


def captured(folder: Path) -> list[bytes]:
    """The payloads of the archive, in the order of the records."""
    found: list[tuple[int, bytes]] = []
    for file in tables.RAW.files(folder):
        rows = pq.read_table(file, columns=["kind", "seq", "payload"])
        rows = rows.filter(pc.equal(rows["kind"], "message")).to_pylist()
        found += [(row["seq"], b64decode(row["payload"])) for row in rows]
    return [payload for _, payload in sorted(found)]


def lines(landing: Path) -> int:
    """How many records the broker has published."""
    return sum(path.read_bytes().count(b"\n") for path in published(landing))


def counted(port: int) -> int:
    """How many messages the broker says that it has received."""
    with wire(port, "who looks", V5) as client:
        client.send(Subscribe(1, (SubscribeRequest("$SYS/received/count"),)))
        # Section 3.8.4: a message may come before the SUBACK.
        packet = client.receive()
        while not isinstance(packet, Publish):
            packet = client.receive()
        return int(packet.payload)


def test_totals_are_those_of_the_generator_and_of_the_broker(tmp_path: Path, generator: Path) -> None:
    """A pipeline runs beside a broker under load; in the end each message is in the tables once, whatever counted it.

    The page is made of them, and names the clients and topics that there were.
    """
    landing, folder, page = tmp_path / "landing", tmp_path / "tables", tmp_path / "report.html"
    landing.mkdir()
    settings = tmp_path / "kinmqtt.toml"
    settings.write_text(
        "[broker]\nsys_interval_s = 1\n"
        f'[plugins.metrics]\nlanding = "{landing}"\nroll_s = 2\nkeep_free_bytes = 0\ncapture = ["captured/#"]\n',
        encoding="utf-8",
    )
    beside = command(folder, landing, "--trigger-s", "2", "--window-s", "5", "--watermark-s", "2")
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker("--config", str(settings)))
        pipeline = subprocess.Popen(beside, env=os.environ | spark_environment())
        stack.callback(pipeline.kill)
        told = []
        for arguments in RUNS:
            load = [str(generator), "-p", str(broker.port), "-W", "0.2", "-d", str(SECONDS), *arguments.split()]
            done = subprocess.run(load, capture_output=True, text=True, timeout=SECONDS + LIMIT_S, check=True)
            told.append(json.loads(done.stdout))
        with wire(broker.port, "by hand", V5) as client:
            for number in range(10):
                client.publish("captured/t", b"%d" % number, 1, packet_id=number + 1)
                client.expect(Puback)
        sent = sum(run["published"] for run in told) + 10
        wait_until(lambda: counted(broker.port) == sent, "the broker says how much it has received", LIMIT_S)
        broker.stop()
        wait_until(
            lambda: total(folder, tables.RAW, "delta", name="messages.received") == sent, "it is read", LIMIT_S
        )
        pipeline.send_signal(signal.SIGINT)
        ended = pipeline.wait(LIMIT_S)
    close = [*command(folder, landing, "--window-s", "5", "--watermark-s", "2"), "--final"]
    done = subprocess.run(
        close, env=os.environ | spark_environment(), capture_output=True, text=True, timeout=LIMIT_S
    )
    assert done.returncode == 0, done.stderr
    reported = main(["report", "--tables", str(folder), "--out", str(page)])

    assert ended == 0
    assert [run["lost"] for run in told] == [0, 0, 0]
    delivered = sum(run["delivered"] for run in told)
    assert total(folder, tables.RATES, "delta", name="messages.received") == sent
    assert total(folder, tables.TOP_CLIENTS, "messages") == total(folder, tables.TOP_TOPICS, "messages") == sent
    assert total(folder, tables.USUAL, "messages") == sent
    assert total(folder, tables.RATES, "delta", name="messages.sent") >= delivered  # $SYS, to who looked
    assert total(folder, tables.DROPS, "messages") == 0
    assert total(folder, tables.REJECTED, "line") == total(folder, tables.LATE, "records") == 0
    assert last(folder, "messages.received") == sent
    assert total(folder, tables.RATES, "delta", name="bytes.received") == last(folder, "bytes.received")
    assert captured(folder) == [b"%d" % number for number in range(10)]
    assert lines(landing) == sum(pq.read_metadata(file).num_rows for file in tables.RAW.files(folder))
    text = page.read_text(encoding="utf-8")
    assert reported == 0
    assert "bench/0/data" in text
