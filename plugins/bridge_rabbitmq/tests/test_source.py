"""The source over a real RabbitMQ: what is published, what is acknowledged, and what is rejected."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from pika import BasicProperties

from bridge_rabbitmq_harness.making import Made, connection, forever, item, opened, user
from kinmqtt_spi.errors import PublishRefused, ServiceUnavailable, SinkRefused
from kinmqtt_spi.values import Message
from root_harness.rabbitmq import RabbitMQ
from spi_harness.source_runs import Published, running
from spi_harness.waiting import until

NUMBERED = [b"%d" % number for number in range(300)]


def dead_letters(rabbitmq: RabbitMQ, name: str) -> str:
    """A queue whose rejected messages go to ``name-dead``."""
    rabbitmq.declare(f"{name}-dead")
    return rabbitmq.declare(name, x_dead_letter_exchange="", x_dead_letter_routing_key=f"{name}-dead")


def test_a_delivery_becomes_a_message_with_its_properties(rabbitmq: RabbitMQ) -> None:
    """Headers become user properties, and the properties of MQTT 5 come back."""
    queue = rabbitmq.declare("source-whole", "source-whole")
    properties = BasicProperties(
        content_type="text/plain",
        correlation_id="c",
        message_id="m-1",
        headers={"device": "dev7", "n": 3, "ok": True, "a": ["2", "3"], "mqtt-response-topic": "re/1", "x-y": "z"},
    )

    async def test() -> Message:
        published = Published()
        source = Made().source(connection(rabbitmq.address), queue, to="devices/${header.device}/${queue}")
        async with running(source, published):
            rabbitmq.put(queue, [b"reboot"], properties)
            await until(lambda: published.messages, "it is published")
            await until(lambda: not rabbitmq.left(queue), "it is acknowledged")
        return published.messages[0]

    message = asyncio.run(test())

    assert (message.topic, message.payload, message.qos) == ("devices/dev7/source-whole", b"reboot", 1)
    assert message.properties.content_type == "text/plain"
    assert message.properties.correlation_data == b"c"
    assert message.properties.response_topic == "re/1"
    expected = (("device", "dev7"), ("n", "3"), ("ok", "true"), ("a", "2"), ("a", "3"), ("amqp-message-id", "m-1"))
    assert message.properties.user_property == expected


def test_a_topic_comes_back_from_its_routing_key(rabbitmq: RabbitMQ) -> None:
    """Also one with dots within its levels."""
    queue = rabbitmq.declare("source-topics", "source-topics")
    topics = ["plant/v1.2/a", "a/b", "a.b", "/.", "*/é"]

    async def test() -> list[str]:
        async with opened(connection(rabbitmq.address), exchange="source-topics") as out:
            assert await out.send([item(topic) for topic in topics]) is None
        published = Published()
        async with running(Made().source(connection(rabbitmq.address), queue, to="${topic}"), published):
            await until(lambda: len(published.messages) == len(topics), "all are published")
        return [message.topic for message in published.messages]

    assert asyncio.run(test()) == topics


def test_what_makes_no_message_is_rejected_and_dead_lettered(rabbitmq: RabbitMQ) -> None:
    """No topic, too long, or more than the broker's limits allow: the others are published."""
    queue = dead_letters(rabbitmq, "source-dead")
    made = Made()

    def limited(messages: Sequence[Message]) -> None:
        if any(message.payload == b"refused" for message in messages):
            raise ValueError("longer than limits.max_packet_bytes")

    async def test() -> None:
        for body, key in ((b"1", "a"), (b"no topic", "a/b"), (b"x" * 1001, "a"), (b"refused", "a"), (b"2", "a")):
            rabbitmq.put(queue, [body], BasicProperties(headers={"key": key}))
        published = Published(limited)
        source = made.source(connection(rabbitmq.address), queue, to="in/${header.key}", max_message_bytes=1000)
        async with running(source, published):
            await until(lambda: published.payloads == [b"1", b"2"], "the others are published")
            await until(lambda: not rabbitmq.left(queue), "all are answered")

    asyncio.run(test())

    dead = {taken.body[:10] for taken in rabbitmq.take("source-dead-dead")}
    assert dead == {b"no topic", b"x" * 10, b"refused"}
    assert made.skipped.value == 3
    assert "a message of queue 'source-dead' was rejected" in made.log.texts("warn")[0]


def test_a_refusal_of_the_broker_pauses_without_giving_messages_back(rabbitmq: RabbitMQ) -> None:
    """Queues count how often a message was given back, and some drop it then."""
    queue = rabbitmq.declare("source-refused", x_queue_type="quorum", x_delivery_limit=1)
    made = Made()
    refusals = [PublishRefused("the outbox is full") for _ in range(4)]

    def refusing(messages: Sequence[Message]) -> None:
        if refusals:
            raise refusals.pop()

    async def test() -> None:
        rabbitmq.put(queue, NUMBERED)
        published = Published(refusing)
        source = made.source(connection(rabbitmq.address), queue, prefetch=10)
        async with running(source, published):
            await until(lambda: len(published.messages) >= 300, "all came")
        assert published.payloads == NUMBERED

    asyncio.run(test())

    assert made.redelivered.value == 0
    assert "the broker refuses messages, it pauses: the outbox is full" in made.log.texts("warn")[0]


def test_rabbitmq_sends_no_more_ahead_than_the_bounds_allow(rabbitmq: RabbitMQ) -> None:
    """In messages, and in bytes."""
    queue = rabbitmq.declare("source-bounds")

    async def test(**bounds: int) -> int:
        source = Made().source(connection(rabbitmq.address), queue, to="in/a", **bounds)
        release = asyncio.Event()
        async with running(source, Published(lambda messages: release.wait())):
            ready = "element(2, lists:keyfind(messages_ready, 1, rabbit_amqqueue:info(Q, [messages_ready])))"
            find = f'{{ok, Q}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)), {ready}'
            await until(lambda: int(rabbitmq.evaluate(find)) < 300, "some were sent ahead")
            return 300 - int(rabbitmq.evaluate(find))

    rabbitmq.put(queue, NUMBERED)

    assert asyncio.run(test(prefetch=20)) <= 20
    assert asyncio.run(test(prefetch_bytes=10_000, max_message_bytes=1000)) <= 10


def test_what_was_not_acknowledged_comes_again_and_says_so(rabbitmq: RabbitMQ) -> None:
    """A node that is killed sends it once more, in its order, and marks it."""
    queue = rabbitmq.declare("source-again", x_queue_type="quorum")
    made = Made()
    held: list[bytes] = []

    async def hold(messages: Sequence[Message], release: asyncio.Event) -> None:
        held.extend(message.payload for message in messages)
        await release.wait()

    async def test() -> None:
        rabbitmq.put(queue, NUMBERED[:10])
        source = made.source(connection(rabbitmq.address), queue)
        release = asyncio.Event()
        async with running(source, Published(lambda messages: hold(messages, release))) as task:
            await until(lambda: held, "they are delivered")
            await asyncio.to_thread(rabbitmq.kill)
            release.set()
            with pytest.raises(ServiceUnavailable):
                await task
        await asyncio.to_thread(rabbitmq.start)
        published = Published()
        task = asyncio.ensure_future(forever(source, published))
        await until(lambda: len(published.messages) >= 10, "they came again")
        task.cancel()
        await asyncio.wait([task])
        assert published.payloads == NUMBERED[:10]
        assert ("amqp-redelivered", "1") in published.messages[0].properties.user_property

    asyncio.run(test())

    assert made.redelivered.value >= 10


def test_two_sources_divide_a_queue_and_lose_nothing_when_one_leaves(rabbitmq: RabbitMQ) -> None:
    """B11: what the one had and did not acknowledge comes to the other; doubles are possible."""
    queue = rabbitmq.declare("source-divided")
    both, here = Published(), Published()

    async def hold(messages: Sequence[Message]) -> None:
        here.messages += messages
        await asyncio.Event().wait()

    async def test() -> None:
        leaving = Made().source(connection(rabbitmq.address), queue, prefetch=50)
        staying = Made().source(connection(rabbitmq.address), queue, prefetch=50)
        async with running(staying, both):
            async with running(leaving, Published(hold)):
                await until(lambda: rabbitmq.consumers(queue) == 2, "both are there")
                await asyncio.to_thread(rabbitmq.put, queue, NUMBERED)
                await until(lambda: here.messages and len(both.messages) > 100, "both have some")
            await until(lambda: set(both.payloads) == set(NUMBERED), "everything has come")
            await until(lambda: not rabbitmq.left(queue), "all are acknowledged")

    asyncio.run(test())


def test_a_deleted_queue_is_said_and_waited_for(rabbitmq: RabbitMQ) -> None:
    """RabbitMQ ends the consumer; a new attempt says which queue to create."""
    queue = rabbitmq.declare("source-deleted")
    source = Made().source(connection(rabbitmq.address), queue)

    def delete() -> None:
        channel = rabbitmq.channel()
        channel.queue_delete(queue)
        channel.connection.close()

    async def test() -> None:
        published = Published()
        async with running(source, published) as task:
            rabbitmq.put(queue, [b"1"])
            await until(lambda: published.messages, "it runs")
            await asyncio.to_thread(delete)
            with pytest.raises(ServiceUnavailable, match="it was deleted"):
                await task
        with pytest.raises(ServiceUnavailable, match="no queue 'source-deleted' in vhost '/': create it"):
            await source.run(published)

    asyncio.run(test())


def test_what_is_declared_is_a_quorum_queue_that_is_bound(rabbitmq: RabbitMQ) -> None:
    """Only with ``declare``."""
    made = Made()
    source = made.source(
        connection(rabbitmq.address), "source-made", declare=True, exchange="source-made", binding_keys=("a.*",)
    )

    async def test() -> None:
        published = Published()
        async with running(source, published):
            await until(lambda: "source-made" in rabbitmq.evaluate("rabbit_amqqueue:list_names()"), "it is declared")
            await until(lambda: publish() or published.messages, "it is bound, and published")

    def publish() -> bool:
        channel = rabbitmq.channel()
        channel.basic_publish("source-made", "a.b", b"1")
        channel.connection.close()
        return False

    asyncio.run(test())


def test_a_wrong_password_is_refused(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """An operator must act."""
    source = Made().source(user(rabbitmq.address, tmp_path, "ada", "wrong"), "any")

    with pytest.raises(SinkRefused, match=r"plugins.bridge_rabbitmq.connections.main: .*check user"):
        asyncio.run(source.run(Published()))
