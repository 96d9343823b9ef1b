"""Metrics by way of Kafka: the sink in a broker, Spark's side on one machine and on a cluster, and tables in S3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import count
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import TYPE_CHECKING, Any

import pytest
from attrs import evolve

from core_harness.brokers import running_broker
from core_harness.wire import wire
from kinmqtt.mqtt.packets import V5
from kinmqtt_event_kafka.schema import encode, event_id
from kinmqtt_metrics import MetricsSink
from kinmqtt_metrics import tables as t
from kinmqtt_metrics.errors import PipelineError
from kinmqtt_metrics.kafka_settings import KafkaSettings, SettingsWithKafka
from kinmqtt_metrics.kafka_writer import KafkaWriter
from kinmqtt_metrics.line_writer import RETRY_S
from kinmqtt_metrics.pipeline.settings import PipelineSettings, Topic
from kinmqtt_metrics.record import Record
from kinmqtt_metrics.spool import RECORD_BYTES, UNFIT, WRITE_FAILED, Figures, Spool
from kinmqtt_spi.errors import AssemblyError, NotConfigured
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.event import Event, EventKind, EventVersion
from metrics_harness import recomputed
from metrics_harness.landing_data import Life, line
from metrics_harness.running import FAST_JAVA, children, until
from metrics_harness.spark_environment import spark_environment
from metrics_harness.spark_session import spark_session
from root_harness import kafka_questions
from root_harness.kafka import Kafka
from root_harness.s3 import BUCKET, S3, s3_server
from root_harness.spark_jars import kafka_connector, s3_connector
from spi_harness.processes import free_port, wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_names = count()


@pytest.fixture(scope="module")
def s3() -> Iterator[S3]:
    """An S3 server."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def spark(s3: S3) -> Iterator[SparkSession]:
    """A session with both connectors."""
    from kinmqtt_metrics.spark import start

    settings = connectors(s3) | {"spark.driver.extraJavaOptions": FAST_JAVA}
    with spark_session(lambda: start("local[2]", settings)) as session:
        yield session


def connectors(s3: S3) -> dict[str, str]:
    """Settings with which Spark speaks with Kafka and with the S3 server."""
    return s3.conf | {"spark.jars": ",".join(map(str, [*kafka_connector(), *s3_connector()]))}


def send(kafka: Kafka, topic: str, values: Iterable[tuple[bytes | None, bytes | None]]) -> None:
    """Write keys and values to a topic."""

    async def sending() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=kafka.address)
        await producer.start()
        try:
            for key, value in values:
                await producer.send(topic, value, key=key)
            await producer.flush()
        finally:
            await producer.stop()

    kafka_questions.ask(sending())


def send_records(kafka: Kafka, topic: str, records: Iterable[Record]) -> None:
    """Write records as the sink does."""
    send(kafka, topic, ((record["node"].encode(), line(record).rstrip()) for record in records))


def check(read: Any, records: Sequence[Record]) -> None:
    """Every table is what the records come to, each once; ``read`` returns the rows of a table."""
    closed, _, _ = recomputed.windows([records], 10, 10, final=True)
    expected = recomputed.tables(closed, 10)
    expected["raw"] = recomputed.raw(records)
    for table in t.TABLES:
        if table is not t.REJECTED:
            have, want = read(table), expected.get(table.name, [])
            assert recomputed.comparable(have) == recomputed.comparable(want), table.name


def in_s3(s3: S3, folder: str, copy: Path) -> Any:
    """Reads tables in S3 as any reader of Parquet does: the objects below a table's name."""

    def read(table: t.Table) -> list[dict[str, Any]]:
        for key in s3.keys(f"{folder}/{table.name}/batch-"):
            path = copy / key.removeprefix(f"{folder}/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(s3.get(key))
        return recomputed.read(copy, table)

    return read


@pytest.fixture
def lives() -> list[Life]:
    """Two brokers."""
    random = Random(4)
    return [Life(node, f"{number:016x}", random) for number, node in enumerate(("a", "b/%"), 1)]


def run(spark: SparkSession, settings: PipelineSettings, **others: Any) -> list[str]:
    """The pipeline in this process; what it told."""
    from kinmqtt_metrics.pipeline.run import Asked, read

    told: list[str] = []
    read(evolve(settings, **others), spark, Asked(), told.append)
    return told


def test_tables_in_s3_are_what_the_records_in_kafka_come_to(
    kafka: Kafka, s3: S3, spark: SparkSession, lives: list[Life], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after a run that ended between its commit and what readers see, and beside one that was slower."""
    from kinmqtt_metrics.pipeline.remote_commits import RemoteCommits

    topic, folder = kafka.create_topic(f"records-{next(_names)}", partitions=3), f"t{next(_names)}"
    settings = PipelineSettings(
        None,
        f"s3a://{BUCKET}/{folder}",
        once=True,
        records=200,
        topic=Topic(kafka.address, topic),
    )
    first = [record for life in lives for record in life.ticks(8)]
    send_records(kafka, topic, first)
    # Twice, because an acknowledgement was lost; and what is no record.
    send_records(kafka, topic, first[:9])
    send(kafka, topic, [(b"a", b'{"v":1,"t":17'), (b"a", None)])

    with monkeypatch.context() as killed:
        killed.setattr(RemoteCommits, "publish", broken)
        with pytest.raises(PipelineError, match="killed here"):
            run(spark, settings)
    assert not s3.keys(f"{folder}/raw/")
    run(spark, settings)
    second = [record for life in lives for record in life.ticks(8)]
    send_records(kafka, topic, second)
    with monkeypatch.context() as slept:
        # As the other one would do while this one sleeps.
        commit = RemoteCommits._commit

        def twice(steps: RemoteCommits, name: str) -> None:
            commit(steps, name)
            steps._number -= 1
            commit(steps, name)

        slept.setattr(RemoteCommits, "_commit", twice)
        with pytest.raises(PipelineError, match="another pipeline writes to"):
            run(spark, settings)
    # Nothing is left to be read, so that nodes are silent.
    run(spark, settings, idle_s=0)

    read = in_s3(s3, folder, tmp_path)
    check(read, [*first, *second])
    rates = spark.read.parquet(f"s3a://{BUCKET}/{folder}/rates")
    assert rates.selectExpr("sum(delta)").collect()[0][0] == sum(row["delta"] for row in read(t.RATES))
    commits = [json.loads(s3.get(key)) for key in s3.keys(f"{folder}/.pipeline/v1/log/")]
    assert sum(commit["step"]["counts"].get("repeated", 0) for commit in commits) == 9
    whys = {(row["file"].rpartition("-")[0], row["why"].split(":")[0]) for row in read(t.REJECTED)}
    assert whys == {(topic, "a line that is not JSON, or incomplete"), (topic, "a record without a value")}
    # What steps made that nobody goes on from is gone.
    assert {key.split("/")[4][:10] for key in s3.keys(f"{folder}/.pipeline/v1/made/")} == {"0000000002"}


def broken(*_: Any) -> None:
    """A driver that is killed."""
    raise OSError("killed here")


@contextmanager
def cluster(folder: Path) -> Iterator[str]:
    """A master and a worker with two cores, from the jars of the pip package; the master's URL."""
    import pyspark

    home = Path(pyspark.__file__).parent
    # The worker's Python has this package, and no folder that the driver has.
    around = os.environ | spark_environment() | {"SPARK_HOME": str(home), "SPARK_LOCAL_DIRS": str(folder / "spark")}
    port, page = free_port(), free_port()
    program = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy."]
    address = ["--host", "127.0.0.1"]
    with ExitStack() as running:

        def start(name: str, *more: str) -> subprocess.Popen[bytes]:
            log = running.enter_context((folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                [program[0], program[1] + name, *address, *more], env=around, stdout=log, stderr=log
            )
            running.callback(process.wait, 60)
            running.callback(process.terminate)
            return process

        master = start("master.Master", "--port", str(port), "--webui-port", str(page))
        url = f"spark://127.0.0.1:{port}"
        more = ["--cores", "2", "--memory", "900m", "--webui-port", "0", "--work-dir", str(folder / "work")]
        start("worker.Worker", *more, url)

        def is_there() -> bool:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{page}/json/", timeout=5) as answer:
                    return b'"aliveworkers" : 1' in answer.read()
            except OSError:
                return False

        until(is_there, master)
        yield url


def test_a_driver_that_is_killed_on_a_cluster_leaves_each_row_once(
    kafka: Kafka, s3: S3, lives: list[Life], tmp_path: Path
) -> None:
    """From Kafka to S3, with workers that share no folder with it: kill -9 in the middle of a batch, and again."""
    topic, folder = kafka.create_topic(f"records-{next(_names)}", partitions=2), f"t{next(_names)}"
    records = [record for life in lives for record in life.ticks(12)]
    send_records(kafka, topic, [*records[:9], *records])
    with cluster(tmp_path) as master:
        program = [sys.executable, "-m", "kinmqtt_metrics.command", "pipeline", "run", "--from", "kafka"]
        program += ["--servers", kafka.address, "--topic", topic, "--tables", f"s3a://{BUCKET}/{folder}"]
        program += ["--records", "120", "--trigger-s", "0", "--master", master]
        conf = connectors(s3) | {"spark.executor.memory": "700m", "spark.driver.extraJavaOptions": FAST_JAVA}
        for key, value in conf.items():
            program += ["--conf", f"{key}={value}"]
        around = os.environ | spark_environment()
        with subprocess.Popen(program, env=around, stderr=subprocess.DEVNULL) as killed:
            try:
                # The first batch counts, and the second is being copied.
                until(lambda: len(s3.keys(f"{folder}/.pipeline/v1/log/")) == 1, killed)
                began = len(s3.keys(f"{folder}/.pipeline/v1/made/"))
                until(lambda: len(s3.keys(f"{folder}/.pipeline/v1/made/")) > began, killed)
            finally:
                for process in (*children(killed.pid), killed.pid):
                    os.kill(process, 9)
        done = subprocess.run([*program, "--final"], env=around, capture_output=True, text=True, timeout=300)

    assert done.returncode == 0, done.stderr
    check(in_s3(s3, folder, tmp_path), records)


def test_client_events_come_once(kafka: Kafka, spark: SparkSession, tmp_path: Path) -> None:
    """As a stream and as a batch: typed, each id once, and without what is no event."""
    from kinmqtt_metrics.source import events

    topic = kafka.create_topic(f"events-{next(_names)}", partitions=2)
    data = {"address": "192.0.2.1", "version": 5, "username": None, "session_present": True, "expiry_s": 60}
    told = [
        Event(EventKind.CONNECT, "é", EventVersion(1, 1), 1_790_000_000.125, data),
        Event(EventKind.SUBSCRIBE, "é", EventVersion(1, 2), 1_790_000_001.0, {"filter": "a/#", "qos": 1}),
        Event(EventKind.DISCONNECT, "é", EventVersion(1, 3), 1_790_000_002.0, {"by": "client", "reason": 0}),
    ]

    async def sending() -> None:
        from aiokafka import AIOKafkaProducer

        producer = AIOKafkaProducer(bootstrap_servers=kafka.address)
        await producer.start()
        for record in map(partial(encode, "north"), [*told, told[0]]):
            await producer.send_and_wait(topic, record.value, key=record.key, headers=list(record.headers))
        await producer.send_and_wait(topic, b"{}", headers=[("ce_id", b"x")])
        await producer.send_and_wait(topic, b'{"node":')
        await producer.stop()

    kafka_questions.ask(sending())
    more = {"maxOffsetsPerTrigger": "2"}
    stream = events(spark, kafka.address, topic, options=more)
    writing = stream.writeStream.format("parquet").option("path", str(tmp_path / "rows"))
    writing.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
    for query in spark.streams.active:
        query.awaitTermination()

    streamed = spark.read.parquet(str(tmp_path / "rows")).orderBy("counter").collect()
    batch = events(spark, kafka.address, topic, stream=False).orderBy("counter").collect()
    for rows in (streamed, batch):
        assert [row["id"] for row in rows] == [event_id("north", event) for event in told]
        assert [row["kind"] for row in rows] == ["CONNECT", "SUBSCRIBE", "DISCONNECT"]
        connect, subscribe, _ = rows
        assert (connect["node"], connect["client_id"], connect["epoch"]) == ("north", "é", 1)
        assert connect["at"].isoformat() == "2026-09-21T14:13:20.125000"
        assert {key: connect["data"][key] for key in data} == data
        assert (subscribe["data"]["filter"], subscribe["data"]["qos"]) == ("a/#", 1)
    assert events(spark, kafka.address, topic, stream=False, watermark=None).count() == 4


def metrics_in(kafka: Kafka, topic: str) -> list[Record]:
    """The records in a topic, in the order of their numbers; some may be there twice."""
    return sorted((json.loads(record.value) for record in kafka.records(topic)), key=lambda said: int(said["seq"]))


def test_a_broker_writes_its_metrics_to_kafka(kafka: Kafka, tmp_path: Path) -> None:
    """Also what happened while Kafka stood still: each record at least once, and none without its number."""
    topic = kafka.create_topic(f"metrics-{next(_names)}")
    (tmp_path / "kinmqtt.toml").write_text(
        f'[broker]\nnode_name = "n1"\n[plugins]\nonly = ["metrics"]\n[plugins.metrics]\nsink = "kafka"\n'
        f'[plugins.metrics.kafka]\nservers = ["{kafka.address}"]\ntopic = "{topic}"\ntimeout_s = 1.0\n'
    )

    def names() -> list[str]:
        return [str(record.get("client", record["name"])) for record in metrics_in(kafka, topic)]

    with running_broker("-c", "kinmqtt.toml", cwd=tmp_path) as broker:
        with wire(broker.port, "before", V5):
            wait_until(lambda: "before" in names(), "a client's event is in Kafka")
        kafka.pause()
        with wire(broker.port, "meanwhile", V5):
            wait_until(lambda: "records can't be written" in broker.output, "the log says why")
        kafka.go_on()
        wait_until(lambda: "meanwhile" in names(), "nothing is lost")
        wait_until(lambda: "records are written again" in broker.output, "the log says so")

    records = metrics_in(kafka, topic)
    assert [record["seq"] for record in records if record["name"] == "stopped"]
    assert {record["seq"] for record in records} == set(range(1, records[-1]["seq"] + 1))
    assert {record.key for record in kafka.records(topic)} == {b"n1"}


@pytest.mark.parametrize(
    ("more", "error"),
    [
        ({}, pytest.raises(NotConfigured, match="names no server")),
        ({"landing": Path()}, pytest.raises(AssemblyError, match="nothing is written to landing: leave it out")),
    ],
)
def test_a_sink_without_servers_is_off(more: dict[str, Any], error: Any) -> None:
    """And one that has a folder, too, is a mistake."""
    with error:
        MetricsSink().configure(BareContext("metrics", SettingsWithKafka(sink="kafka", **more)))


def test_what_a_topic_does_not_take_holds_up_nothing(kafka: Kafka) -> None:
    """Batches become smaller, down to one record; one that is too large alone is dropped and counted."""
    topic = kafka.create_topic(f"small-{next(_names)}", max_message_bytes="4500")
    figures = Figures(MetricRegistry())
    spool = Spool(1000 * RECORD_BYTES, figures)
    settings = KafkaSettings(servers=(kafka.address,), topic=topic)
    writer = KafkaWriter(spool, settings, "n", "00000000c0ffee01", time.monotonic)
    random = Random(1)
    for number in range(40):
        # Of random letters, which don't become shorter.
        text = "".join(random.choices(ascii_letters, k=8000 if number == 20 else 400))
        assert spool.offer(number, {"kind": "event", "name": text})

    try:
        while writer.step():
            pass
        producer = writer._topic._producers.producer
        for number in range(40, 80):
            assert spool.offer(number, {"kind": "event", "name": "".join(random.choices(ascii_letters, k=400))})
        while writer.step():
            pass
        assert writer._topic._producers.producer is producer, "what the topic refuses is remembered"
    finally:
        writer.let_go()

    assert [record["t"] for record in metrics_in(kafka, topic)] == [t for t in range(80) if t != 20]
    assert (figures.written.value, figures.dropped[UNFIT].value, spool.waiting_bytes) == (79, 1, 0)


def test_a_topic_that_is_missing_is_waited_for(kafka: Kafka) -> None:
    """The plugin creates none; records wait, and go there once it is there."""
    topic = f"missing-{next(_names)}"
    figures = Figures(MetricRegistry())
    spool = Spool(3 * RECORD_BYTES, figures)
    writer = KafkaWriter(
        spool, KafkaSettings(servers=(kafka.address,), topic=topic), "n", "00000000c0ffee01", time.monotonic
    )
    assert spool.offer(1, {"kind": "event", "name": "a"})

    try:
        assert writer.turn() == RETRY_S
        assert f"there is no topic {topic!r} in Kafka: create it" in writer.trouble
        assert [spool.offer(t, {"kind": "event", "name": "b"}) for t in (2, 3, 4)] == [True, True, False]
        assert figures.dropped[WRITE_FAILED].value == 1
        assert topic not in kafka.topics()
        kafka.create_topic(topic)
        wait_until(lambda: writer.turn() != RETRY_S and not spool.waiting_bytes, "the topic is found")
    finally:
        writer.let_go()

    assert [record["t"] for record in metrics_in(kafka, topic)] == [1, 2, 3]
    assert writer.trouble == ""
