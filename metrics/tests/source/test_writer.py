"""Rows that become messages, at a real broker."""

from __future__ import annotations

import queue
import select
import socket
import socketserver
import ssl
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from paho.mqtt.client import Client, MQTTMessage, MQTTMessageInfo
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.sql.types import StructType

from core_harness.brokers import running_broker
from kinmqtt_metrics.source import writer as module
from kinmqtt_metrics.source.client import Mqtt5Client
from kinmqtt_metrics.source.connection import Connection
from kinmqtt_metrics.source.endpoint import Endpoint
from kinmqtt_metrics.source.messages import ID, Message, NotPublished, message_of
from kinmqtt_metrics.source.writer import BatchWriter, StreamWriter
from metrics_harness.segments import publish
from spi_harness.processes import TIME_LIMIT_S, free_port

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@contextmanager
def subscriber(port: int, topic: str = "#") -> Iterator[queue.Queue[MQTTMessage]]:
    """What a client gets that subscribes to a topic with QoS 2."""
    got: queue.Queue[MQTTMessage] = queue.Queue()
    ready: queue.Queue[bool] = queue.Queue()
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    client.on_message = lambda _client, _user, message: got.put(message)
    client.on_subscribe = lambda *_: ready.put(True)
    client.connect("127.0.0.1", port)
    client.subscribe(topic, 2)
    client.loop_start()
    ready.get(timeout=TIME_LIMIT_S)
    try:
        yield got
    finally:
        client.disconnect()
        client.loop_stop()


@contextmanager
def narrow_way(port: int, broker: int, limit_bytes: int) -> Iterator[None]:
    """A port that leads to a broker: of what a client says it passes the first bytes on, and never the rest."""

    class Way(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            left_bytes = limit_bytes
            with suppress(ConnectionError), socket.create_connection(("127.0.0.1", broker)) as there:
                while True:
                    heard = [there, self.request] if left_bytes else [there]
                    if there in select.select(heard, [], [])[0]:
                        piece, to = there.recv(1 << 16), self.request
                    else:
                        piece, to = self.request.recv(left_bytes), there
                        left_bytes -= len(piece)
                    if not piece:
                        return
                    to.sendall(piece)

    with socketserver.ThreadingTCPServer(("127.0.0.1", port), Way) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


_SPARK_LIMIT_S = 120.0
"""How long it may take until Spark has begun to publish, on a busy machine."""


def _get(got: queue.Queue[MQTTMessage], count: int) -> list[MQTTMessage]:
    return [got.get(timeout=_SPARK_LIMIT_S) for _ in range(count)]


def _id(message: MQTTMessage) -> str:
    properties: Any = message.properties
    its: dict[str, str] = dict(properties.UserProperty)
    return its["kinmqtt-id"]


def _save(rows: DataFrame, port: int, **options: Any) -> None:
    rows.write.format("kinmqtt").options(host="127.0.0.1", port=port, **options).mode("append").save()


def test_rows_become_messages(spark: SparkSession) -> None:
    """Topic, payload, QoS, RETAIN, properties and id arrive as the columns say; QoS 1 where they say nothing."""
    rows = spark.createDataFrame(
        [
            ("a", bytearray(b"\x00\xff"), 0, False, {"unit": "C"}, "first"),
            ("b", bytearray(b"two"), 2, True, None, None),
            ("c", bytearray(), None, None, {}, None),
        ],
        "topic string, payload binary, qos int, retain boolean, properties map<string,string>, message_id string",
    ).coalesce(1)

    with running_broker() as broker, subscriber(broker.port) as got:
        _save(rows, broker.port)
        messages = {message.topic: message for message in _get(got, 3)}
        with subscriber(broker.port, "b") as late:
            retained = _get(late, 1)[0]

    assert {topic: (message.payload, message.qos) for topic, message in messages.items()} == {
        "a": (b"\x00\xff", 0),
        "b": (b"two", 2),
        "c": (b"", 1),
    }
    properties: Any = messages["a"].properties
    assert properties.UserProperty == [("kinmqtt-id", "first"), ("unit", "C")]
    assert retained.retain and retained.payload == b"two"
    assert _id(messages["b"]).endswith("-0-0-1") and _id(messages["c"]).endswith("-0-0-2")


def test_empty_partitions_are_no_error(spark: SparkSession) -> None:
    """A partition without rows connects nowhere and is committed like the others."""
    rows = spark.createDataFrame([("a", "x")], "topic string, payload string")

    with running_broker() as broker, subscriber(broker.port) as got:
        _save(rows.repartition(4), broker.port)
        assert [message.payload for message in _get(got, 1)] == [b"x"]
    _save(rows.where("topic = 'b'").repartition(3), free_port())


def test_a_stream_publishes_every_row_and_a_repeated_batch_has_the_same_ids(
    spark: SparkSession, tmp_path: Path
) -> None:
    """A batch that is not known to be done is published again, and receivers can tell by the ids."""
    landing = tmp_path / "landing"
    for number in range(1, 4):
        publish(landing, number)

    def run(port: int) -> None:
        rows = spark.readStream.format("kinmqtt").option("maxFilesPerTrigger", 2).load(str(landing))
        query = (
            rows.selectExpr("concat('seq/', seq) as topic", "client as payload")
            .writeStream.format("kinmqtt")
            .options(host="127.0.0.1", port=port, checkpointLocation=str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        try:
            assert query.awaitTermination(120)
        finally:
            query.stop()

    with running_broker() as broker, subscriber(broker.port) as got:
        run(broker.port)
        first = _get(got, 30)
        # As if the driver had died before it noted that the last batch was done.
        for note in (tmp_path / "checkpoint" / "commits").glob("*1*"):
            note.unlink()
        run(broker.port)
        again = _get(got, 10)
        assert got.empty()

    assert {message.topic for message in first} == {f"seq/{seq}" for seq in range(1, 31)}
    ids = {message.topic: _id(message) for message in first}
    assert len(set(ids.values())) == 30
    assert {message.topic: _id(message) for message in again} == {f"seq/{s}": ids[f"seq/{s}"] for s in range(21, 31)}


def test_a_broker_that_comes_back_gets_the_rest(spark: SparkSession) -> None:
    """A connection that is lost is made again within timeout_s, and what was not acknowledged is sent again."""
    count = 3000
    port, narrowed = free_port(), free_port()

    def command(_port: int, *arguments: str, port: int) -> list[str]:
        endpoint = f"tcp:{port}:interface=127.0.0.1"
        return [sys.executable, "-m", "kinmqtt", "run", "--listen", endpoint, "--data", "memory", *arguments]

    failure: list[BaseException] = []

    def save() -> None:
        try:
            # Made in this thread, which has no active session before, and would find no source.
            rows = spark.createDataFrame([(f"a/{at}",) for at in range(count)], "topic string")
            rows = rows.selectExpr("topic", "topic as payload", "true as retain").coalesce(1)
            _save(rows, port, maxInFlight=10, timeout_s=60)
        except BaseException as error:
            failure.append(error)

    thread = threading.Thread(target=save)
    # The first broker can't get them all, however late it stops.
    first = running_broker(command=partial(command, port=narrowed))
    with narrow_way(port, narrowed, 50 * count), first, subscriber(narrowed) as got:
        thread.start()
        _get(got, 100)
    with running_broker(command=partial(command, port=port)):
        thread.join(_SPARK_LIMIT_S)
        # It ends well when all was acknowledged, by the one or the other.
        assert not thread.is_alive() and not failure
        with subscriber(port, f"a/{count - 1}") as got:
            assert [message.payload for message in _get(got, 1)] == [f"a/{count - 1}".encode()]


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (("a/+", "x", 1), r"row 0 of the partition: topic 'a/\+' is not valid"),
        ((None, "x", 1), "topic None is not valid"),
        (("a", None, 1), "topic 'a': payload is null"),
        (("a", "x", 3), "qos is 3: it is 0, 1 or 2"),
    ],
)
def test_a_row_that_is_no_message_says_which(spark: SparkSession, row: tuple[Any, ...], why: str) -> None:
    """The error names the row, its topic and what is wrong."""
    rows = spark.createDataFrame([row], "topic string, payload string, qos int").coalesce(1)

    with running_broker() as broker:
        with pytest.raises(Exception, match=why):
            _save(rows, broker.port)


def _message(**row: Any) -> Message:
    return message_of({"topic": "a", "payload": "x"} | row, 7, "id")


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"topic": ""}, "topic '' is not valid: a topic has 1 to 65535 bytes"),
        ({"topic": "x" * 65_536}, "topic 'x{100}'… is not valid"),
        ({"topic": "ä" * 32_768}, "topic 'ä{100}'… is not valid"),
        ({"topic": "a\0"}, "is not valid: .* no '\\+', '#' or NUL"),
        ({"topic": "a\udcff"}, "is not valid"),
        ({"topic": "$share/g/a"}, "is not valid: .* does not begin with \\$share/"),
        ({"message_id": "x" * 65_536}, "topic 'a': message_id has 65536 bytes: it may have 65535"),
        ({"message_id": "a\0"}, "topic 'a': message_id contains a NUL"),
        ({"properties": [("n" * 65_536, "x")]}, "properties: the name 'n{100}'… has 65536 bytes"),
        ({"properties": [("n\0", "x")]}, r"properties: the name 'n\\x00' contains a NUL"),
        ({"properties": [("n", "ä" * 32_768)]}, "properties: the value of 'n' has 65536 bytes: it may have 65535"),
        ({"properties": [("n", "\0")]}, "properties: the value of 'n' contains a NUL"),
        ({"topic": "t" * 300, "payload": None}, "topic 't{100}'…: payload is null"),
    ],
)
def test_what_mqtt_can_not_say_is_named(row: dict[str, Any], why: str) -> None:
    """The row, its topic and the column, and what there may be."""
    with pytest.raises(NotPublished, match=f"row 7 of the partition[:,] .*{why}"):
        _message(**row)


def test_the_longest_that_mqtt_can_say_is_taken() -> None:
    """Topic, id and properties of 65,535 bytes each."""
    message = _message(
        topic="t" * 65_535, message_id="i" * 65_535, properties=[("n" * 65_535, "v" * 65_535), ("k", None)]
    )

    assert [len(name) + len(value) for name, value in message.properties] == [10 + 65_535, 131_070]


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("payload_bytes", [0, 90, 110, 127, 128, 16_383, 70_000, 2_097_152])
def test_the_size_of_a_packet_is_known(qos: int, payload_bytes: int) -> None:
    """To the byte: a broker says how much it takes, and closes the connection for more."""
    message = _message(qos=qos, payload=b"x" * payload_bytes, properties=[("unit", "ä")])
    properties = Properties(PacketTypes.PUBLISH)
    properties.UserProperty = list(message.properties)
    client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
    packets: list[bytes] = []

    def queued(
        command: int, packet: bytes | bytearray, mid: int, qos: int, info: MQTTMessageInfo | None = None
    ) -> MQTTErrorCode:
        packets.append(bytes(packet))
        return MQTTErrorCode.MQTT_ERR_SUCCESS

    client._packet_queue = queued  # type: ignore[method-assign]
    client._sock = object()  # type: ignore[assignment]
    client._send_publish(1, b"a", message.payload, qos, False, False, None, properties)
    client._sock = None

    assert message.size_bytes == len(packets[0])


def test_a_packet_that_is_too_long_is_told() -> None:
    """One that no broker takes, and one that this one does not, before it closes the connection."""
    connection = Connection.__new__(Connection)
    connection._name, connection._packet_bytes = "h:1", 100

    with pytest.raises(NotPublished, match="topic 'a': payload and properties need a packet of 268435462 bytes"):
        _message(payload=_Payload(268_435_456 - 31), message_id="i" * 10)
    assert _message(payload=_Payload(268_435_455 - 31), message_id="i" * 10).size_bytes == 268_435_460
    with pytest.raises(
        NotPublished, match="h:1 takes packets of at most 100 bytes, but the message to 'a' needs one of"
    ):
        connection.publish(_message(payload=b"x" * 100))


class _Payload(str):
    """A text that is encoded to so many bytes, which take no memory of ours."""

    def __new__(cls, size_bytes: int) -> _Payload:
        """Of that size."""
        payload = super().__new__(cls)
        payload.size_bytes = size_bytes  # type: ignore[attr-defined]
        return payload

    def encode(self, *_: Any) -> Any:
        """Nothing but a length."""
        return range(self.size_bytes)  # type: ignore[attr-defined]


def test_a_row_that_is_no_message_is_found_before_the_rows_with_it_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the rows that Spark hands over together none is published where one can't be."""
    made: list[Any] = []
    monkeypatch.setattr(module, "Connection", lambda *of: made.append(of))
    schema = StructType().add("topic", "string").add("payload", "string")
    rows = pa.RecordBatch.from_pylist([{"topic": topic, "payload": "x"} for topic in ("a", "b", "c/#")])

    with pytest.raises(NotPublished, match="row 2 of the partition: topic 'c/#'"):
        BatchWriter(CaseInsensitiveDict({"host": "h"}), schema, False).write(iter([rows]))
    assert made == []


@pytest.mark.parametrize("qos", [1, 2])
def test_what_the_broker_refuses_is_an_error(spark: SparkSession, qos: int) -> None:
    """A message that is not accepted is no message that is published."""
    rows = spark.createDataFrame([("$plugin/x", "x", qos)], "topic string, payload string, qos int").coalesce(1)

    with running_broker() as broker:
        with pytest.raises(Exception, match=r"refused a message to '\$plugin/x': Topic name invalid"):
            _save(rows, broker.port)


def test_a_broker_that_is_not_there_is_an_error_that_names_it(spark: SparkSession) -> None:
    """After timeout_s the error says where, how long and why."""
    rows = spark.createDataFrame([("a", "x")], "topic string, payload string").coalesce(1)

    port = free_port()
    with pytest.raises(
        Exception, match=rf"127.0.0.1:{port} could not be reached for 0.5 s \(timeout_s\): Connection ref"
    ):
        _save(rows, port, timeout_s=0.5)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({}, "give option host"),
        ({"host": "h", "password": "x"}, "would appear in plans and logs: give passwordFile"),
        ({"host": "h", "passwordFile": "x", "passwordVariable": "y"}, "give one of them"),
        ({"host": "h", "port": "0"}, "option port is '0': it is a number from 1 to 65535"),
        ({"host": "h", "maxInFlight": "many"}, "option maxInFlight is 'many'"),
        ({"host": "h", "tls": "yes"}, "option tls is 'yes': it is true or false"),
        ({"host": "h", "username": "u" * 65_536}, "option username has 65536 bytes: it may have 65535"),
        ({"host": "h", "username": "u\0"}, "option username contains a NUL"),
        ({"host": "h", "username": "\udcff"}, "option username is not valid Unicode"),
        ({"host": "h", "clientId": "c" * 65_400}, "option clientId has 65400 bytes: it may have 65335"),
        ({"host": "h", "idPrefix": "ä" * 40_000}, "option idPrefix has 80000 bytes: it may have 65335"),
        ({"host": "h", "idPrefix": "\0"}, "option idPrefix contains a NUL"),
        ({"host": "h", "caFile": "a\0b"}, "option caFile contains a NUL"),
        ({"host": "h\0"}, "option host contains a NUL"),
        ({"host": "a..b"}, "option host is 'a..b': it is a name or an address, without a port"),
        ({"host": "h" * 64}, "option host is 'hhh.*: it is a name or an address"),
        ({"host": "a b"}, "option host is 'a b'"),
        ({"host": "h", "passwordFile": "x"}, "passwordFile and passwordVariable: give option username, too"),
    ],
)
def test_a_bad_option_is_named(options: dict[str, str], why: str) -> None:
    """What can't be meant is refused before anything runs."""
    with pytest.raises(ValueError, match=why):
        Endpoint.of(CaseInsensitiveDict(options))


@pytest.mark.parametrize(
    ("ddl", "why"),
    [
        ("topic string", "column payload is missing"),
        ("topic string, payload int", "column payload int: format\\('kinmqtt'\\) takes string or binary"),
        ("topic string, payload string, reatin boolean", "column reatin boolean.*publishes topic, payload, qos"),
    ],
)
def test_a_column_that_says_nothing_is_refused(ddl: str, why: str) -> None:
    """A column with a wrong name or type is an error that names those there are."""
    schema = StructType.fromDDL(ddl)
    assert isinstance(schema, StructType)

    for kind in (BatchWriter, StreamWriter):
        with pytest.raises(ValueError, match=why):
            kind({"host": "h"}, schema, False)
    with pytest.raises(ValueError, match="append"):
        BatchWriter({"host": "h"}, schema, True)


def test_a_password_comes_from_where_the_task_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or an environment variable has it; without them the error says where it was looked for."""
    (tmp_path / "password").write_text("secret\n")
    monkeypatch.setenv("KINMQTT_TEST_PASSWORD", "hidden")

    assert Endpoint(host="h", port=1, password_file=str(tmp_path / "password")).password() == "secret"
    assert Endpoint(host="h", port=1, password_variable="KINMQTT_TEST_PASSWORD").password() == "hidden"
    assert Endpoint(host="h", port=1).password() is None
    with pytest.raises(NotPublished, match="variable KINMQTT_NONE is not set on"):
        Endpoint(host="h", port=1, password_variable="KINMQTT_NONE").password()
    (tmp_path / "long").write_text("x" * 65_536)
    (tmp_path / "bytes").write_bytes(b"\xff")
    with pytest.raises(NotPublished, match="passwordFile: the password has 65536 bytes: it may have 65535"):
        Endpoint(host="h", port=1, password_file=str(tmp_path / "long")).password()
    with pytest.raises(NotPublished, match=r"bytes on .*: it is not UTF-8"):
        Endpoint(host="h", port=1, password_file=str(tmp_path / "bytes")).password()
    with pytest.raises(NotPublished, match=r"none on .*: No such file"):
        Endpoint(host="h", port=1, password_file=str(tmp_path / "none")).password()


class _Task:
    """A task of a batch, as Spark tells of it."""

    @staticmethod
    def get() -> _Task:
        return _Task()

    def partitionId(self) -> int:
        return 0

    def taskAttemptId(self) -> int:
        return 7

    def getLocalProperty(self, key: str) -> str:
        return {"sql.streaming.queryId": "query", "streaming.sql.batchId": "3"}[key]


def test_two_writes_of_one_batch_have_ids_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each with a prefix that stays the same when the batch is repeated; without one receivers take them for one."""
    ids: list[str] = []

    class Taking:
        def __init__(self, where: Endpoint, client_id: str) -> None:
            pass

        def publish(self, message: Message) -> None:
            ids.append(dict(message.properties)[ID])

        def wait_for_all(self) -> None:
            pass

        def close(self) -> None:
            pass

    monkeypatch.setattr(module, "Connection", Taking)
    monkeypatch.setattr(module, "TaskContext", _Task)
    schema = StructType().add("topic", "string").add("payload", "string")
    rows = pa.RecordBatch.from_pylist([{"topic": "t", "payload": "x"}])
    for prefix in ("a-", "b-", "a-"):
        options = CaseInsensitiveDict({"host": "h", "idPrefix": prefix})
        BatchWriter(options, schema, False).write(iter([rows]))

    assert ids == ["a-query-3-0-0", "b-query-3-0-0", "a-query-3-0-0"]


def test_messages_that_wait_are_counted_when_it_is_over() -> None:
    """The error tells how many were left, and not how many there were when the waiting began."""
    connection = Connection.__new__(Connection)
    connection._name, connection._endpoint = "h:1", Endpoint(host="h", port=1, timeout_s=0.0)
    connection._failures, connection._refused, connection._lost = [], "", ""
    connection._again, connection._connected = deque(), True

    class Answered:
        """One message is acknowledged just as the wait begins."""

        def __enter__(self) -> None:
            connection._waiting -= 1

        def __exit__(self, *_: object) -> None:
            pass

    connection._waiting = 3
    connection._news = Answered()  # type: ignore[assignment]

    with pytest.raises(NotPublished, match=": 2 messages were not acknowledged within"):
        connection.wait_for_all()


def test_every_connection_has_a_client_id_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A query that is started again finds no session of the first, in which its packet ids are taken for known."""
    names: list[str] = []

    class Taking:
        def __init__(self, where: Endpoint, client_id: str) -> None:
            names.append(client_id)

        publish = wait_for_all = close = lambda *_: None

    monkeypatch.setattr(module, "Connection", Taking)
    monkeypatch.setattr(module, "TaskContext", _Task)
    schema = StructType().add("topic", "string").add("payload", "string")
    rows = pa.RecordBatch.from_pylist([{"topic": "t", "payload": "x"}])
    for _ in range(2):
        BatchWriter(CaseInsensitiveDict({"host": "h"}), schema, False).write(iter([rows]))

    assert len(set(names)) == 2 and all(name.startswith("kinmqtt-spark-query-0-7-") for name in names)


CONNECT, CONNACK, PUBLISH, PUBACK, PUBREC, PUBREL, PUBCOMP, DISCONNECT = 1, 2, 3, 4, 5, 6, 7, 14
CUT = b"cut"
"""What a scripted broker answers when it closes the connection instead."""


def _packet(kind: int, body: bytes) -> bytes:
    return bytes([kind << 4 | (2 if kind == PUBREL else 0), len(body)]) + body


def _connack(reason: int = 0, resumed: bool = False) -> bytes:
    return _packet(CONNACK, bytes([resumed, reason, 0]))


class _Packet:
    """A packet of a client, as far as these tests look at it."""

    def __init__(self, first: int, body: bytes) -> None:
        self.kind, self.qos = first >> 4, first >> 1 & 3
        self.topic, rest = "", body
        if self.kind == PUBLISH:
            length = int.from_bytes(body[:2], "big")
            self.topic, rest = body[2 : 2 + length].decode(), body[2 + length :]
        self.mid = rest[:2]


class _Scripted:
    """A broker that says what a test wants: ``script`` gets the number of the connection, from 0, and a packet."""

    def __init__(self, script: Callable[[int, _Packet], bytes]) -> None:
        self.got: list[tuple[int, int, str]] = []
        self._script = script
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.where = Endpoint(host="127.0.0.1", port=self._listening.getsockname()[1], timeout_s=TIME_LIMIT_S)
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> _Scripted:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(TIME_LIMIT_S)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:
                return
            with connection, connection.makefile("rb") as stream:
                try:
                    while (packet := self._read(stream)) is not None:
                        self.got.append((number, packet.kind, packet.topic))
                        answer = self._script(number, packet)
                        if answer == CUT:
                            break
                        connection.sendall(answer)
                except OSError:
                    pass
            number += 1

    @staticmethod
    def _read(stream: Any) -> _Packet | None:
        if not (first := stream.read(1)):
            return None
        length = shift = 0
        while True:
            byte = stream.read(1)[0]
            length |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return _Packet(first[0], stream.read(length))

    def kinds(self, number: int) -> list[int]:
        """What it got on a connection."""
        return [kind for at, kind, _ in self.got if at == number]


@contextmanager
def _connection(broker: _Scripted) -> Iterator[Connection]:
    connection = Connection(broker.where, "client")
    try:
        yield connection
    finally:
        connection.close()


@pytest.mark.parametrize(
    ("reason", "why"), [(0x90, "Topic name invalid"), (0x97, "Quota exceeded"), (0xFE, "Unspecified error")]
)
def test_a_pubrec_that_refuses_ends_the_exchange(reason: int, why: str) -> None:
    """Though the broker would say that a PUBREL is well: no message is lost in silence, nor is there a PUBREL."""

    def script(_: int, packet: _Packet) -> bytes:
        return {
            CONNECT: _connack(),
            PUBLISH: _packet(PUBREC, packet.mid + bytes([reason if packet.topic == "bad" else 0])),
            PUBREL: _packet(PUBCOMP, packet.mid),
        }.get(packet.kind, b"")

    with _Scripted(script) as broker, _connection(broker) as connection:
        connection.publish(_message(topic="good", qos=2))
        connection.wait_for_all()
        with pytest.raises(NotPublished, match=f"refused a message to 'bad': {why}"):
            connection.publish(_message(topic="bad", qos=2))
            connection.wait_for_all()

    assert broker.kinds(0) == [CONNECT, PUBLISH, PUBREL, PUBLISH, DISCONNECT]


@pytest.mark.parametrize("taken", [False, True])
def test_a_pubcomp_counts_only_after_a_pubrec(taken: bool) -> None:
    """Without one nobody has said that the message is taken; and one that the broker knows no more is lost."""

    def script(_: int, packet: _Packet) -> bytes:
        if packet.kind == PUBLISH and not taken:
            return _packet(PUBCOMP, packet.mid)
        return {
            CONNECT: _connack(),
            PUBLISH: _packet(PUBREC, packet.mid),
            PUBREL: _packet(PUBCOMP, packet.mid + b"\x92"),
        }.get(packet.kind, b"")

    why = "Packet identifier not found" if taken else "there was a PUBCOMP, and no PUBREC"
    with _Scripted(script) as broker, _connection(broker) as connection:
        with pytest.raises(NotPublished, match=f"refused a message to 'a': {why}"):
            connection.publish(_message(qos=2))
            connection.wait_for_all()


@pytest.mark.parametrize("resumed", [False, True])
def test_a_connection_lost_before_the_pubcomp(resumed: bool) -> None:
    """With its session the broker may be done with the message; one that has lost it gets the message once more."""

    def script(number: int, packet: _Packet) -> bytes:
        if number == 0 and packet.kind == PUBREL:
            return CUT
        known = resumed or PUBLISH in broker.kinds(number)
        return {
            CONNECT: _connack(resumed=resumed and number > 0),
            PUBLISH: _packet(PUBREC, packet.mid),
            # A broker that says that all is well, also of what it has never seen.
            PUBREL: _packet(PUBCOMP, packet.mid + (b"\x92" if resumed else b"\0")) if known else CUT,
        }.get(packet.kind, b"")

    with _Scripted(script) as broker, _connection(broker) as connection:
        connection.publish(_message(qos=2))
        connection.wait_for_all()

    assert broker.kinds(0) == [CONNECT, PUBLISH, PUBREL]
    assert broker.kinds(1) == [CONNECT, *([] if resumed else [PUBLISH]), PUBREL, DISCONNECT]


def test_what_is_of_qos_0_is_sent_after_a_lost_connection() -> None:
    """The messages that were not written when the connection was lost go out over the next one, each once."""
    given = threading.Event()
    count = 40

    def script(number: int, packet: _Packet) -> bytes:
        if number == 0 and packet.kind == PUBLISH:
            # Not read on, so that most of it has no room on the way.
            assert given.wait(TIME_LIMIT_S)
            return CUT
        return _connack() if packet.kind == CONNECT else b""

    payload = b"x" * 1_000_000
    with _Scripted(script) as broker, _connection(broker) as connection:
        for at in range(count):
            connection.publish(_message(topic=f"t/{at}", payload=payload, qos=0))
        given.set()
        connection.wait_for_all()

    second = [topic for number, _, topic in broker.got if number == 1 and topic]
    assert second and second == [f"t/{at}" for at in range(count - len(second), count)]
    assert broker.kinds(1)[0] == CONNECT and broker.kinds(1)[-1] == DISCONNECT


def test_qos_0_has_room_again_after_a_lost_connection() -> None:
    """Where all the room was taken by messages that got lost unwritten, the next ones do not wait for ever."""
    full = threading.Event()

    def script(number: int, packet: _Packet) -> bytes:
        if number == 0 and packet.kind == PUBLISH:
            assert full.wait(TIME_LIMIT_S)
            return CUT
        return _connack() if packet.kind == CONNECT else b""

    payload = b"x" * 20_000_000
    with _Scripted(script) as broker:
        broker.where = Endpoint(host="127.0.0.1", port=broker.where.port, max_in_flight=2, timeout_s=TIME_LIMIT_S)
        with _connection(broker) as connection:
            # The first is read, the others are in the way of the fourth.
            for at in range(3):
                connection.publish(_message(topic=f"t/{at}", payload=payload, qos=0))
            full.set()
            connection.publish(_message(topic="t/3", payload=payload, qos=0))
            connection.wait_for_all()

    assert [topic for number, _, topic in broker.got if number == 1 and topic] == ["t/1", "t/2", "t/3"]


def test_a_mid_that_is_in_use_is_not_used_twice() -> None:
    """Ids begin again at 1 after 65,535; a message that gets one of another that waits is sent with the next."""
    waiting: list[bytes] = []

    def script(_: int, packet: _Packet) -> bytes:
        if packet.kind == PUBLISH:
            waiting.append(packet.mid)
            return b"" if len(waiting) == 1 else b"".join(_packet(PUBACK, mid) for mid in waiting)
        return _connack() if packet.kind == CONNECT else b""

    with _Scripted(script) as broker, _connection(broker) as connection:
        connection.publish(_message(topic="first"))
        connection._client._last_mid = 0
        connection.publish(_message(topic="second"))
        connection.wait_for_all()

    assert [topic for _, kind, topic in broker.got if kind == PUBLISH] == ["first", "second"]


@pytest.mark.parametrize("reason", [0x89, 0x9F])
def test_a_broker_that_is_busy_is_tried_again(reason: int) -> None:
    """Refused for now is no refusal; one that lasts says so after timeout_s, and not that the connection was lost."""

    def script(number: int, packet: _Packet) -> bytes:
        if packet.kind == PUBLISH:
            return _packet(PUBACK, packet.mid)
        return _connack(0 if number else reason) if packet.kind == CONNECT else b""

    with _Scripted(script) as broker, _connection(broker) as connection:
        connection.publish(_message())
        connection.wait_for_all()
    with _Scripted(lambda _, packet: _connack(reason)) as broker:
        broker.where = Endpoint(host="127.0.0.1", port=broker.where.port, timeout_s=0.5)
        with pytest.raises(NotPublished, match=r"not accepted within 0.5 s \(timeout_s\); refused: "):
            Connection(broker.where, "client")


def test_a_broker_that_refuses_for_good_when_it_comes_back_ends_it() -> None:
    """Its reason is the error's, at once."""

    def script(number: int, packet: _Packet) -> bytes:
        return _connack(0x87 if number else 0) if packet.kind == CONNECT else CUT

    with _Scripted(script) as broker, _connection(broker) as connection:
        connection.publish(_message())
        with pytest.raises(NotPublished, match="refused: Not authorized"):
            connection.wait_for_all()


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), True),
        (ssl.SSLEOFError(8, "EOF occurred in violation of protocol"), True),
        (ConnectionRefusedError(111, "Connection refused"), True),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), False),
        (ssl.SSLCertVerificationError(1, "certificate verify failed"), False),
    ],
)
def test_a_failure_that_may_pass_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: OSError, passes: bool
) -> None:
    """Until timeout_s; a name that nobody knows and a certificate that is not good are errors at once."""
    connect, tries = Mqtt5Client.connect, 0

    def failing(*of: Any, **more: Any) -> Any:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise error
        return connect(*of, **more)

    def script(_: int, packet: _Packet) -> bytes:
        return _connack() if packet.kind == CONNECT else b""

    monkeypatch.setattr(Mqtt5Client, "connect", failing)
    with _Scripted(script) as broker:
        if passes:
            with _connection(broker):
                assert tries == 2
        else:
            with pytest.raises(NotPublished, match=f"can't be reached: .*{error.args[1]}"):
                Connection(broker.where, "client")
            assert tries == 1


def test_another_paho_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where its refusals can't be seen nothing is sent."""
    monkeypatch.delattr(Client, "_handle_pubrec")

    with pytest.raises(NotPublished, match=r"paho-mqtt 2.* has no _handle_pubrec.*: install paho-mqtt 2\.1 or 2\.2"):
        Connection(Endpoint(host="h", port=1), "client")
