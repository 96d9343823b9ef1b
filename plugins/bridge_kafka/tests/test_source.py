"""The source over a real Kafka: messages, offsets, rebalances, and what it can't publish."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer

from bridge_kafka_harness.making import Made, connection, scram
from bridge_kafka_harness.publishing import write, write_wrong_header
from kinmqtt_bridge_kafka.source import DividedAnew, _rest
from kinmqtt_kafka_kit import Gate
from kinmqtt_spi.errors import NotCommitted, ServiceUnavailable, SinkRefused
from kinmqtt_spi.values import Message
from root_harness.kafka import PASSWORDS, Kafka
from spi_harness.processes import free_port
from spi_harness.source_runs import Published, running
from spi_harness.waiting import until

NUMBERED = [b"%d" % number for number in range(300)]


def run(test: Coroutine[Any, Any, None]) -> None:
    """Run a test in an event loop."""
    asyncio.run(asyncio.wait_for(test, 120))


async def until_committed(kafka: Kafka, group: str, topic: str, count: int) -> None:
    """Wait until a group has committed so many offsets of a topic."""
    async with asyncio.timeout(30):
        while sum((await asyncio.to_thread(kafka.committed, group, topic)).values()) < count:
            pass


def test_a_record_becomes_a_message(kafka: Kafka) -> None:
    """The key makes the topic, and headers become user properties but for those of a bridge."""
    topic = kafka.create_topic("source-record")
    source = Made().source(connection(kafka.address), (topic,), "source-record", "devices/${key}/do")

    async def test() -> None:
        headers = [("site", b"north"), ("mqtt-id", b"1"), ("binary", b"\xff")]
        await write(kafka.address, topic, [b"on"], key=b"lamp", headers=headers)
        published = Published()
        async with running(source, published):
            await until(lambda: published.messages, "it is published")
        [message] = published.messages
        assert (message.topic, message.payload, message.qos, message.retain) == ("devices/lamp/do", b"on", 1, False)
        assert message.properties.user_property == (("site", "north"),)

    run(test())


def test_a_pause_within_a_batch_lets_partitions_be_divided() -> None:
    """It would hold a rebalance for five seconds, and publish records that are somebody else's by then."""

    async def test() -> None:
        gate = Gate()
        assert gate.enter()
        await _rest(gate, 0.0)  # Nothing has happened: the batch goes on.
        resting = asyncio.ensure_future(_rest(gate, 0.05))
        await asyncio.sleep(0)
        await asyncio.wait_for(gate.on_partitions_revoked(()), 1.0)
        await gate.on_partitions_assigned(())
        with pytest.raises(DividedAnew):
            await resting

    run(test())


def test_a_source_goes_on_where_it_was(kafka: Kafka) -> None:
    """What was published is committed, and nobody gets it again."""
    topic = kafka.create_topic("source-offsets", partitions=2)

    async def test() -> None:
        for payloads in (NUMBERED[:100], NUMBERED[100:]):
            await write(kafka.address, topic, payloads)
            published = Published()
            source = Made().source(connection(kafka.address), (topic,), "source-offsets", "in/a")
            async with running(source, published):
                await until(lambda p=payloads, m=published: len(m.messages) >= len(p), "all came")  # type: ignore[misc]
                end = sum((await asyncio.to_thread(kafka.committed, "source-offsets", topic)).values())
            assert sorted(published.payloads) == sorted(payloads)
        assert end == len(NUMBERED)

    run(test())


def test_what_is_not_published_is_not_committed(kafka: Kafka) -> None:
    """The broker could not commit it: the source ends with that error, and its successor publishes it."""
    topic = kafka.create_topic("source-again")
    source = Made().source(connection(kafka.address), (topic,), "source-again", "in/a")

    def failing(messages: Sequence[Message]) -> None:
        raise NotCommitted("the store fails")

    async def test() -> None:
        await write(kafka.address, topic, NUMBERED)
        with pytest.raises(NotCommitted):
            await source.run(Published(failing))
        assert await asyncio.to_thread(kafka.committed, "source-again", topic) == {0: 0}
        published = Published()
        async with running(source, published):
            await until(lambda: len(published.messages) >= 300, "all came")
        assert published.payloads == NUMBERED

    run(test())


def test_what_makes_no_topic_is_skipped_and_counted(kafka: Kafka) -> None:
    """A key with a slash would leave the part of the topics that the template names; a line a minute says so."""
    topic = kafka.create_topic("source-skipped")
    made = Made()
    source = made.source(connection(kafka.address), (topic,), "source-skipped", "devices/${key}/do")

    async def test() -> None:
        for key in (b"a/b", b"+", b"\xff", b"fine"):
            await write(kafka.address, topic, [b"x"], key=key)
        published = Published()
        async with running(source, published):
            await until(lambda: published.messages, "one is published")
            await until(lambda: made.skipped.value == 3, "the others are counted")
        assert [message.topic for message in published.messages] == ["devices/fine/do"]

    run(test())

    [line] = made.log.texts("warn")
    assert "source in: a record was skipped: source-skipped 0 at offset 0" in line


def test_a_record_with_a_header_whose_name_is_not_utf_8_is_skipped(kafka: Kafka) -> None:
    """aiokafka raises for the batch that has it; nothing else is lost, also at the end of a partition."""
    topic = kafka.create_topic("source-header", partitions=2)
    made = Made()
    source = made.source(connection(kafka.address), (topic,), "source-header", "in/a")

    async def test() -> None:
        await write(kafka.address, topic, NUMBERED[:6])
        for _ in range(2):
            await write_wrong_header(kafka.address, topic)
        await write(kafka.address, topic, NUMBERED[6:12])
        await write_wrong_header(kafka.address, topic)
        published = Published()
        async with running(source, published):
            await until(lambda: len(published.messages) >= 12 and made.skipped.value >= 3, "the others came")
            await until_committed(kafka, "source-header", topic, 15)
        assert sorted(published.payloads) == sorted(NUMBERED[:12])

    run(test())

    assert made.skipped.value == 3
    [line] = made.log.texts("warn")
    assert "a record was skipped: source-header 0 at offset 3: a header's name is not UTF-8" in line


def test_what_the_broker_can_not_publish_is_skipped(kafka: Kafka) -> None:
    """Publish does not say which message of a batch it was: the others are published one by one."""
    topic = kafka.create_topic("source-unfit")
    made = Made()
    source = made.source(connection(kafka.address), (topic,), "source-unfit", "in/a")

    def limited(messages: Sequence[Message]) -> None:
        if any(message.payload == b"13" for message in messages):
            raise ValueError("longer than limits.max_packet_bytes")

    async def test() -> None:
        await write(kafka.address, topic, NUMBERED[:20])
        published = Published(limited)
        async with running(source, published):
            await until(lambda: len(published.messages) == 19, "the others are published")
        assert b"13" not in published.payloads

    run(test())

    assert made.skipped.value == 1


def test_aborted_transactions_are_not_published(kafka: Kafka) -> None:
    """Read committed: what its writer has taken back was never there."""
    topic = kafka.create_topic("source-transactions")
    source = Made().source(connection(kafka.address), (topic,), "source-transactions", "in/a")

    async def test() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka.address, transactional_id="t") as producer:
            for value in (b"aborted", b"committed"):
                await producer.begin_transaction()
                await producer.send_and_wait(topic, value)
                if value == b"aborted":
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        published = Published()
        async with running(source, published):
            await until(lambda: published.messages, "it is published")
        assert published.payloads == [b"committed"]

    run(test())


def test_a_missing_topic_is_waited_for_and_not_created(kafka: Kafka, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins when somebody creates it."""
    monkeypatch.setattr("kinmqtt_bridge_kafka.source.TOPICS_PAUSE_MS", 200)
    source = Made().source(connection(kafka.address), ("source-missing",), "source-missing", "in/a")

    async def test() -> None:
        published = Published()
        async with running(source, published):
            await until(lambda: source._gate, "it has connected")
            assert "source-missing" not in await asyncio.to_thread(kafka.topics)
            await asyncio.to_thread(kafka.create_topic, "source-missing", 2)
            await write(kafka.address, "source-missing", NUMBERED)
            await until(lambda: len(published.messages) >= 300, "all came")
        assert sorted(published.payloads) == sorted(NUMBERED)

    run(test())


def test_nothing_is_lost_when_sources_come_and_go(kafka: Kafka) -> None:
    """B11: two nodes divide three partitions under load, and one leaves: doubles are possible, losses aren't."""
    topic = kafka.create_topic("source-rebalance", partitions=3)
    written: list[bytes] = []
    ends = asyncio.Event()

    async def writing() -> None:
        while not ends.is_set():
            some = [b"%d" % number for number in range(len(written), len(written) + 30)]
            await write(kafka.address, topic, some)
            written.extend(some)

    async def test() -> None:
        published = [Published(), Published()]
        settings = connection(kafka.address)
        first, second = (Made().source(settings, (topic,), "source-rebalance", "in/a") for _ in range(2))
        async with running(first, published[0]):
            writer = asyncio.ensure_future(writing())
            await until(lambda: published[0].messages, "the first one publishes")
            async with running(second, published[1]):
                await until(lambda: published[1].messages, "the second one publishes")
                alone = len(published[0].messages)
                await until(lambda: len(published[0].messages) > alone, "the first one still publishes")
            ends.set()
            await writer
            await until(lambda: seen(published) == set(written), "all were published")

    run(test())


def seen(published: Sequence[Published]) -> set[bytes]:
    """All payloads that anybody has published."""
    return {payload for each in published for payload in each.payloads}


def test_a_rebalance_waits_for_what_is_under_way(kafka: Kafka) -> None:
    """B11: the batch is published and committed before another source gets its partition; nothing comes twice."""
    topic = kafka.create_topic("source-revoke", partitions=2)
    release = asyncio.Event()

    async def held(messages: Sequence[Message]) -> None:
        await release.wait()

    async def test() -> None:
        begun = Published(lambda messages: held(messages))
        other = Published()
        settings = connection(kafka.address)
        first, second = (Made().source(settings, (topic,), "source-revoke", "in/a") for _ in range(2))
        await write(kafka.address, topic, NUMBERED)
        async with running(first, begun):
            await until(lambda: first_holds(first), "a batch is under way")
            async with running(second, other):
                await until(lambda: first_is_asked(first), "the group is divided anew")
                asked_at = time.monotonic()
                # As long as it is under way, nobody else gets the partition: for two seconds of the five at most.
                await until(lambda: other.messages or time.monotonic() > asked_at + 2, "time passes")
                release.set()
                await until(lambda: len(begun.messages) + len(other.messages) >= 300, "all came")
        assert sorted(begun.payloads + other.payloads) == sorted(NUMBERED)

    def first_holds(source: Any) -> bool:
        return source._gate is not None and not source._gate._idle.is_set()

    def first_is_asked(source: Any) -> bool:
        return not source._gate._open.is_set()

    run(test())


def test_nothing_is_lost_when_kafka_is_killed(kafka: Kafka) -> None:
    """The source goes on, or ends and is started again, as the broker does."""
    topic = kafka.create_topic("source-kill", partitions=3)
    source = Made().source(connection(kafka.address), (topic,), "source-kill", "in/a")
    published = Published()

    async def forever() -> None:
        while True:
            try:
                await source.run(published)
            except ServiceUnavailable:
                await asyncio.sleep(0.05)

    async def test() -> None:
        await write(kafka.address, topic, NUMBERED[:150])
        task = asyncio.ensure_future(forever())
        await until(lambda: len(published.messages) >= 150, "the first half came")
        await asyncio.to_thread(kafka.kill)
        await asyncio.to_thread(kafka.start)
        await write(kafka.address, topic, NUMBERED[150:])
        await until(lambda: set(published.payloads) == set(NUMBERED), "the other half came")
        task.cancel()
        await asyncio.wait([task])

    run(test())


def test_a_wrong_password_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """An operator must act."""
    settings = scram(kafka.sasl_address, tmp_path, "ada", "wrong-one")
    source = Made().source(settings, ("any",), "refused", "in/a")

    async def test() -> None:
        with pytest.raises(SinkRefused, match="SaslAuthenticationFailed"):
            await source.run(Published())

    run(test())


def test_a_group_without_rights_is_refused(kafka: Kafka, tmp_path: Path) -> None:
    """The user may connect, and nothing else."""
    topic = kafka.create_topic("source-forbidden")
    settings = scram(kafka.sasl_address, tmp_path, "mallory", PASSWORDS["mallory"])
    source = Made().source(settings, (topic,), "refused", "in/a")

    async def test() -> None:
        with pytest.raises(SinkRefused, match="GroupAuthorizationFailed"):
            await source.run(Published())

    run(test())


def test_nobody_there_is_not_a_refusal() -> None:
    """A server that does not listen is tried again."""
    source = Made().source(connection(f"127.0.0.1:{free_port()}"), ("any",), "away", "in/a")

    async def test() -> None:
        with pytest.raises(ServiceUnavailable):
            await source.run(Published())

    run(test())
