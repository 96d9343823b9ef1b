"""The sink over a real Kafka: records, answers, and what it can't send."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from bridge_kafka_harness.making import Made, connection, identity, item, open_sink, scram
from kinmqtt_kafka_kit import SecuritySettings
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import Poison, Retry
from kinmqtt_spi.services.plugin import HealthState
from root_harness.kafka import PASSWORDS, Kafka
from spi_harness.processes import free_port


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop, whose end it must not outlive by much."""
    asyncio.run(asyncio.wait_for(test, 90))


def test_a_message_becomes_a_record(kafka: Kafka) -> None:
    """Payload, key and time are the message's, and its topic, flags and id are headers."""
    topic = kafka.create_topic("sink-record")
    properties = Properties(
        content_type="text/plain", user_property=(("site", "north"), ("mqtt-id", "forged"), ("site", "south"))
    )
    sent = item("sensors/a", b"21.5", "ada", qos=1, retain=True, properties=properties)

    async def test() -> None:
        async with open_sink(kafka.address, topic, headers={"sensor": "${topic[2]}"}) as sink:
            assert await sink.send([sent]) is None

    run(test())

    [record] = kafka.records(topic)
    assert (record.key, record.value, record.timestamp) == (b"ada", b"21.5", 1_700_000_000_500)
    assert list(record.headers) == [
        ("mqtt-topic", b"sensors/a"),
        ("mqtt-qos", b"1"),
        ("mqtt-retain", b"1"),
        ("mqtt-id", identity(sent.message)),
        ("mqtt-content-type", b"text/plain"),
        ("site", b"north"),
        ("site", b"south"),
        ("sensor", b"a"),
    ]


def test_batches_may_be_compressed(kafka: Kafka) -> None:
    """A compressed batch of much the same takes less than a tenth, and consumers see the same records."""
    topic = kafka.create_topic("sink-gzip")
    items = [item(payload=b"x" * 1000) for _ in range(100)]

    async def test() -> None:
        async with open_sink(kafka.address, topic, compression="gzip") as sink:
            assert await sink.send(items) is None

    run(test())

    assert [record.value for record in kafka.records(topic)] == [b"x" * 1000] * 100
    [segment] = kafka.folder.glob(f"data/{topic}-0/*.log")
    assert len(segment.read_bytes().rstrip(b"\0")) < 10_000


def test_records_go_where_other_clients_of_kafka_expect_their_key(kafka: Kafka) -> None:
    """A key has the partition that aiokafka's own partitioner, which is Java's, gives it."""
    topic = kafka.create_topic("sink-partitions", partitions=5)
    items = [item(client=f"client-{number}") for number in range(100)]

    async def test() -> None:
        async with open_sink(kafka.address, topic) as sink:
            assert await sink.send(items) is None
            producer = sink.producer
            for each in items[:20]:
                await producer.send_and_wait(topic, b"theirs", key=each.key)

    run(test())

    records = kafka.records(topic)
    ours = {record.key: record.partition for record in records if record.value != b"theirs"}
    assert len(ours) == 100
    assert set(ours.values()) == set(range(5))
    for record in records:
        assert ours[record.key] == record.partition


def test_topics_follow_from_the_message(kafka: Kafka) -> None:
    """A template leads each message to the topic of its own."""
    for name in ("mqtt.red", "mqtt.blue"):
        kafka.create_topic(name)

    async def test() -> None:
        async with open_sink(kafka.address, "mqtt.${topic[1]}") as sink:
            answers = await sink.send([item("red/1"), item("blue/1"), item("b lue/1"), item("red/2")])
            assert answers is not None
            assert answers[0] is answers[1] is answers[3] is None
            assert answers[2] == Poison("'mqtt.b lue' can't be the name of a Kafka topic")

    run(test())

    assert [dict(each.headers)["mqtt-topic"] for each in kafka.records("mqtt.red")] == [b"red/1", b"red/2"]
    assert [dict(each.headers)["mqtt-topic"] for each in kafka.records("mqtt.blue")] == [b"blue/1"]


def test_a_missing_topic_is_waited_for_and_not_created(kafka: Kafka) -> None:
    """B9: its messages come again, the broker logs why; those of other topics are sent, and later all are."""
    made = Made()
    kafka.create_topic("mqtt.there")
    items = [item("there/1"), item("gone/1"), item("there/2")]

    async def test() -> None:
        async with open_sink(kafka.address, "mqtt.${topic[1]}", made) as sink:
            for _ in range(3):
                answers = await sink.send(items)
                assert answers == [
                    None,
                    Retry("there is no topic 'mqtt.gone' in Kafka; create it, its messages wait"),
                    None,
                ]
            assert sink.check().state is HealthState.DEGRADED
            assert made.log.texts("warn") == []
            assert "mqtt.gone" not in await asyncio.to_thread(kafka.topics)

            await asyncio.to_thread(kafka.create_topic, "mqtt.gone", 2)
            while await sink.send(items[1:2]) is not None:
                pass
            assert sink.check().state is HealthState.HEALTHY

    run(test())

    assert len(kafka.records("mqtt.gone")) == 1


def test_what_is_longer_than_the_settings_allow_is_poison(kafka: Kafka) -> None:
    """Kafka is not asked; the others of the batch are sent."""
    topic = kafka.create_topic("sink-own-limit")

    async def test() -> None:
        async with open_sink(kafka.address, topic, max_record_bytes=2048) as sink:
            answers = await sink.send([item(), item(payload=b"x" * 2048), item()])
            assert answers is not None
            assert [type(each) for each in answers] == [type(None), Poison, type(None)]

    run(test())

    assert len(kafka.records(topic)) == 2


def test_what_a_topic_does_not_take_is_poison_and_holds_up_nobody(kafka: Kafka) -> None:
    """Kafka refuses the whole batch: the sink finds the record that is too large, and sends the others in order."""
    topic = kafka.create_topic("sink-small", max_message_bytes="3000")
    items = [item(payload=b"%d" % number) for number in range(50)]
    items[20] = item(payload=b"x" * 5000)

    async def test() -> None:
        async with open_sink(kafka.address, topic) as sink:
            answers = await sink.send(items)
            assert answers is not None
            assert [number for number, each in enumerate(answers) if each is not None] == [20]
            assert isinstance(answers[20], Poison)
            assert "takes no record of" in answers[20].text
            assert await sink.send([item(payload=b"last")]) is None

    run(test())

    assert [record.value for record in kafka.records(topic)] == [
        *(each.message.payload for each in items if len(each.message.payload) < 5000),
        b"last",
    ]


def test_batches_become_as_small_as_a_topic_wants_them(kafka: Kafka) -> None:
    """Records that fit, in batches that don't: all are sent, and from then on in batches that fit."""
    topic = kafka.create_topic("sink-small-batches", max_message_bytes="20000")
    renewed = []

    async def test() -> None:
        async with open_sink(kafka.address, topic) as sink:
            for _ in range(3):
                producer = sink.producer
                assert await sink.send([item(payload=b"x" * 1000) for _ in range(200)]) is None
                renewed.append(sink.producer is not producer)

    run(test())

    assert len(kafka.records(topic)) == 600
    assert renewed == [True, False, False]


def test_a_wrong_password_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """B7: an operator must act; the text says where and how, and has no password."""
    sink = Made().sink(scram(kafka.sasl_address, tmp_path, "ada", "wrong-one"), "any")

    async def test() -> None:
        with pytest.raises(SinkRefused, match="SaslAuthenticationFailed") as refused:
            await sink.open()
        assert str(refused.value).startswith("plugins.bridge_kafka.connections.main: Kafka refuses this client: ")
        assert str(refused.value).endswith(": check username, password_file and mechanism of security")
        assert "wrong-one" not in str(refused.value)

    run(test())


def test_a_user_without_any_rights_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """Kafka lets only those who may write to some topic have a producer that repeats nothing."""
    sink = Made().sink(scram(kafka.sasl_address, tmp_path, "mallory", PASSWORDS["mallory"]), "any")

    async def test() -> None:
        with pytest.raises(SinkRefused, match="ClusterAuthorizationFailed"):
            await sink.open()

    run(test())


def test_a_user_who_may_not_write_to_the_topic_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """The user may write to another one, and Kafka does not say whether this one is there."""
    mine, other = kafka.create_topic("eve.mine"), kafka.create_topic("eve.other")
    kafka.allow_writing("eve", mine)
    sink = Made().sink(scram(kafka.sasl_address, tmp_path, "eve", PASSWORDS["eve"]), "eve.${topic[1]}")

    async def test() -> None:
        await sink.open()
        assert await sink.send([item("mine/1")]) is None
        with pytest.raises(SinkRefused, match="TopicAuthorizationFailed"):
            await sink.send([item("other/1")])
        await sink.close()

    run(test())

    assert len(kafka.records(mine)) == 1
    assert kafka.records(other) == []


def test_a_user_with_rights_sends(kafka: Kafka, tmp_path: Path) -> None:
    """The password file's last line break does not count."""
    topic = kafka.create_topic("sink-scram")
    sink = Made().sink(scram(kafka.sasl_address, tmp_path, "ada", PASSWORDS["ada"]), topic)

    async def test() -> None:
        await sink.open()
        assert await sink.send([item()]) is None
        await sink.close()

    run(test())

    assert len(kafka.records(topic)) == 1


@pytest.mark.parametrize("mechanism", ["PLAIN", "SCRAM-SHA-256"])
def test_connections_are_encrypted_and_the_server_is_verified(kafka: Kafka, tmp_path: Path, mechanism: Any) -> None:
    """A certificate that no trusted authority has signed is refused, and the password is not sent."""
    topic = kafka.create_topic(f"sink-tls-{mechanism}")
    password = tmp_path / "password"
    password.write_text(PASSWORDS["ada"])
    security = SecuritySettings(
        protocol="SASL_SSL",
        mechanism=mechanism,
        username="ada",
        password_file=password,
        ca_file=kafka.certificate,
    )

    async def test() -> None:
        sink = Made().sink(connection(kafka.tls_address, security=security), topic)
        await sink.open()
        assert await sink.send([item()]) is None
        await sink.close()

        strange = Made().sink(connection(kafka.tls_address, security=evolve(security, ca_file=None)), topic)
        with pytest.raises(SinkRefused, match="certificate verify failed"):
            await strange.open()

    run(test())

    assert len(kafka.records(topic)) == 1


def test_a_missing_password_file_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """It was there when the settings were read."""
    settings = scram(kafka.sasl_address, tmp_path, "ada", PASSWORDS["ada"])
    (tmp_path / "ada.password").unlink()
    sink = Made().sink(settings, "any")

    async def test() -> None:
        with pytest.raises(SinkRefused, match="there is no such file"):
            await sink.open()

    run(test())


def test_nobody_there_is_not_a_refusal() -> None:
    """A server that does not listen is tried again."""
    sink = Made().sink(connection(f"127.0.0.1:{free_port()}"), "any")

    async def test() -> None:
        with pytest.raises(ServiceUnavailable):
            await sink.open()
        with pytest.raises(ServiceUnavailable, match="not connected"):
            await sink.send([item()])

    run(test())
