"""The sink over a real RabbitMQ: what arrives, what comes back, and what happens while RabbitMQ is in trouble."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from bridge_rabbitmq_harness.making import connection, item, opened, resolved, send_at_last, sink, user
from kinmqtt_bridge_rabbitmq import BridgeRabbitMQ, BridgeRabbitMQSettings
from kinmqtt_bridge_rabbitmq import blocked as blocked_module
from kinmqtt_bridge_rabbitmq.settings import SinkSettings
from kinmqtt_bridge_rabbitmq.sink import RabbitMQSink
from kinmqtt_spi.errors import ServiceUnavailable, SinkRefused
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.bridge import Poison, Retry, Sink
from root_harness.rabbitmq import RabbitMQ
from spi_harness.processes import free_port
from spi_harness.waiting import until


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run it, with nothing left behind."""

    async def alone() -> None:
        await test()
        await until(lambda: len(asyncio.all_tasks()) == 1, "all tasks have ended")

    asyncio.run(alone())


def attempts(out: RabbitMQSink) -> list[Callable[[], Coroutine[Any, Any, object]]]:
    """What the broker does after a failure: it sends, and opens again."""
    return [lambda: out.send([item()]), out.open]


def test_a_message_has_what_mqtt_knows_of_it(rabbitmq: RabbitMQ) -> None:
    """Routing key, headers and properties; user properties in their order, repeated ones as an array."""
    queue = rabbitmq.declare("sink-whole", "sink-whole", "sensors.#")
    properties = Properties(
        content_type="text/plain",
        response_topic="answers/1",
        correlation_data=b"\xff\x00",
        user_property=(("b", "1"), ("a", "2"), ("a", "3"), ("CC", "x"), ("mqtt-id", "y"), ("x-delay", "z")),
    )
    sent = item("sensors/kitchen", b"21.5", qos=1, retain=True, properties=properties)

    async def test() -> None:
        async with opened(
            connection(rabbitmq.address), exchange="sink-whole", headers={"site": "${clientid}"}
        ) as out:
            assert await out.send([sent]) is None

    run(test)

    [got] = rabbitmq.take(queue)
    assert (got.body, got.routing_key) == (b"21.5", "sensors.kitchen")
    assert got.properties.headers == {
        "mqtt-topic": "sensors/kitchen",
        "mqtt-qos": 1,
        "mqtt-retain": True,
        "mqtt-response-topic": "answers/1",
        "mqtt-correlation-data": b"\xff\x00",
        "b": "1",
        "a": ["2", "3"],
        "site": "ada",
    }
    assert got.properties.message_id == f"{sent.message.id.node:016x}-{sent.message.id.counter}"
    assert (got.properties.delivery_mode, got.properties.timestamp) == (2, 1_700_000_000)
    assert (got.properties.content_type, got.properties.reply_to) == ("text/plain", None)


def test_messages_of_one_topic_have_their_own_ids_times_and_flags(rabbitmq: RabbitMQ) -> None:
    """What is encoded once for a topic is not mixed up; a payload of several frames arrives whole."""
    queue = rabbitmq.declare("sink-encoded", "sink-encoded")
    long = bytes(range(256)) * 1200
    sent = [
        item("a/é", b"1", qos=1), item("a/é", b"", qos=1), item("a/é", long, qos=1), item("a/é", b"2"),
        item("a/é", b"3", qos=1, retain=True), item("b", b"4", qos=1), item("b", b"5", client="b\ud800", qos=1),
        item("b", b"6", qos=1, properties=Properties(content_type="x")), item("b", b"7", qos=1),
    ]  # fmt: skip

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-encoded", routing_key="${topic}") as out:
            for _ in range(2):
                assert await out.send(sent) is None
        async with opened(connection(rabbitmq.address), exchange="sink-encoded", routing_key="${clientid}") as out:
            answers = await out.send(sent[5:7])
            assert answers is not None
            assert [isinstance(each, Poison) for each in answers] == [False, True]

    run(test)

    got = rabbitmq.take(queue)
    assert len(got) == 2 * len(sent) + 1
    for taken, (message, _, _) in zip(got, [*sent, *sent, sent[5]], strict=True):
        has = taken.properties
        assert taken.body == message.payload
        assert has.message_id == f"{message.id.node:016x}-{message.id.counter}"
        assert has.headers == {"mqtt-topic": message.topic, "mqtt-qos": message.qos, "mqtt-retain": message.retain}
        assert (has.delivery_mode, has.timestamp) == (2, 1_700_000_000)
        assert has.content_type == message.properties.content_type


def test_a_message_without_a_queue_is_poison_although_it_is_acknowledged(rabbitmq: RabbitMQ) -> None:
    """RabbitMQ returns it, and then confirms it: the return wins, and the others of its batch arrive."""
    queue = rabbitmq.declare("sink-returned", "sink-returned", "a")

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-returned") as out:
            answers = await out.send([item("a", b"1"), item("b", b"2"), item("a", b"3"), item("c", b"4")])
        assert answers is not None
        assert [type(each) for each in answers] == [type(None), Poison, type(None), Poison]
        assert "no queue for the routing key 'b'" in answers[1].text  # type: ignore[union-attr]

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"1", b"3"]


def test_what_a_full_queue_rejects_is_sent_again(rabbitmq: RabbitMQ) -> None:
    """``basic.nack`` means later, not never."""
    queue = rabbitmq.declare("sink-full", x_max_length=2, x_overflow="reject-publish")

    async def test() -> None:
        async with opened(connection(rabbitmq.address), routing_key=queue) as out:
            answers = None
            for _ in range(50):  # A queue may take some more than it says.
                answers = await out.send([item(payload=b"%d" % number) for number in range(5)])
                if answers is not None:
                    break
            assert answers is not None
            assert isinstance(answers[-1], Retry)
            assert "a queue is full" in answers[-1].text
            rabbitmq.take(queue)
            assert await out.send([item(payload=b"later")]) is None

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"later"]


def test_what_can_not_be_sent_is_poison_and_the_channel_stays_open(rabbitmq: RabbitMQ) -> None:
    """A client must not be able to have RabbitMQ close the connection: that would hold up all others for ever."""
    queue = rabbitmq.declare("sink-unfit", "sink-unfit")
    wide = Properties(user_property=tuple((f"name-{number}", "x" * 60_000) for number in range(3)))
    tricks = Properties(response_topic="amq.rabbitmq.reply-to", user_property=(("CC", "x"), ("é" * 200, "long")))

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-unfit", max_message_bytes=1000) as out:
            unfit = [item("a" * 300), item(payload=b"x" * 1001), item(properties=wide), item("\ud800")]
            answers = await out.send([*unfit, item(payload=b"fine", properties=tricks)])
            assert answers is not None
            assert [isinstance(each, Poison) for each in answers] == [True, True, True, True, False]
            assert await out.send([item(payload=b"too")]) is None

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"fine", b"too"]


def test_what_is_longer_than_rabbitmq_allows_is_poison_at_the_second_attempt(rabbitmq: RabbitMQ) -> None:
    """RabbitMQ closes the channel, and says how long a message may be."""
    queue = rabbitmq.declare("sink-long", "sink-long")
    batch = [item(payload=b"x" * 2001), item(payload=b"short")]

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-long") as out:
            with pytest.raises(ServiceUnavailable, match="larger than"):
                await out.send(batch)
            await out.open()
            answers = await out.send(batch)
            assert answers is not None
            assert [isinstance(each, Poison) for each in answers] == [True, False]

    rabbitmq.evaluate("application:set_env(rabbit, max_message_size, 2000), persistent_term:erase(max_message_size)")
    try:
        run(test)
    finally:
        rabbitmq.evaluate("application:set_env(rabbit, max_message_size, 134217728)")

    assert [got.body for got in rabbitmq.take(queue)] == [b"short"]


def test_a_memory_alarm_makes_the_sink_wait_and_sends_nothing_twice(
    rabbitmq: RabbitMQ,
) -> None:
    """While RabbitMQ blocks publishers attempts send nothing more: what it has not read comes when it goes on."""
    queue = rabbitmq.declare("sink-blocked", "sink-blocked")

    async def test() -> None:
        out = sink(connection(rabbitmq.address), exchange="sink-blocked")
        await out.open()
        rabbitmq.set_memory_alarm(True)
        try:
            with pytest.raises(ServiceUnavailable, match=r"connection.blocked.*memory"):
                await out.send([item(payload=b"1")])
            for _ in range(5):
                with pytest.raises(ServiceUnavailable, match=r"connection.blocked.*memory"):
                    await out.open()
        finally:
            rabbitmq.set_memory_alarm(False)
        blocked = out._blocked.link
        assert blocked is not None
        await until(lambda: not blocked.is_blocked, "it is not blocked any more")
        await out.open()
        assert await out.send([item(payload=b"2")]) is None
        await out.close()

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"1", b"2"]


def test_a_reload_sends_nothing_twice_while_rabbitmq_is_blocked(rabbitmq: RabbitMQ) -> None:
    """The new sink waits for the connection of the old one, however often; with other servers it leaves it."""
    queue = rabbitmq.declare("sink-reloaded", "sink-reloaded")
    before = rabbitmq.connections()
    plugin, context = BridgeRabbitMQ(), BareContext("bridge_rabbitmq", None)

    def settings(address: str, exchange: str = "sink-reloaded") -> BridgeRabbitMQSettings:
        to = SinkSettings(connection="main", exchange=exchange)
        return BridgeRabbitMQSettings(connections={"main": connection(address)}, sinks={"out": to})

    async def reloaded(old: Sink, changed: BridgeRabbitMQSettings) -> Sink:
        await resolved(old.close())
        plugin.reload(changed)
        return plugin.sinks(context)["out"].sink

    async def test() -> None:
        context.settings = settings(rabbitmq.address)
        plugin.configure(context)
        out = plugin.sinks(context)["out"].sink
        await resolved(out.open())
        rabbitmq.set_memory_alarm(True)
        try:
            for number in range(4):
                with pytest.raises(ServiceUnavailable, match=r"connection.blocked.*memory"):
                    await resolved(out.send([item(payload=b"1")]) if not number else out.open())
                out = await reloaded(out, settings(rabbitmq.address))
            assert rabbitmq.connections() == before + 1
        finally:
            rabbitmq.set_memory_alarm(False)
        await until(lambda: rabbitmq.left(queue), "what RabbitMQ had not read has come")
        await send_at_last(out, [item(payload=b"2")])
        assert rabbitmq.connections() == before + 1
        await resolved(out.close())

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"1", b"2"]


@pytest.mark.parametrize("how", ["another server", "stop"])
def test_a_blocked_connection_is_cut_when_nobody_needs_it(rabbitmq: RabbitMQ, how: str) -> None:
    """The connection's settings name another server since a reload, or the broker stops."""
    rabbitmq.declare("sink-left", "sink-left")
    before = rabbitmq.connections()
    plugin, context = BridgeRabbitMQ(), BareContext("bridge_rabbitmq", None)

    async def test() -> None:
        to = {"out": SinkSettings(connection="main", exchange="sink-left")}
        context.settings = BridgeRabbitMQSettings(connections={"main": connection(rabbitmq.address)}, sinks=to)
        plugin.configure(context)
        out = plugin.sinks(context)["out"].sink
        await resolved(out.open())
        rabbitmq.set_memory_alarm(True)
        try:
            with pytest.raises(ServiceUnavailable):
                await resolved(out.send([item()]))
            await resolved(out.close())
            if how == "stop":
                plugin.stop()
            else:
                away = f"127.0.0.1:{free_port()}"
                plugin.reload(BridgeRabbitMQSettings(connections={"main": connection(away)}, sinks=to))
                with pytest.raises(ServiceUnavailable, match="refused"):
                    await resolved(plugin.sinks(context)["out"].sink.open())
        finally:
            rabbitmq.set_memory_alarm(False)
        await until(lambda: rabbitmq.connections() == before, "it is cut")

    run(test)


def test_a_level_or_a_name_is_one_word_of_the_routing_key(rabbitmq: RabbitMQ) -> None:
    """Else a publisher could reach bindings that are not for its topics; a wildcard in a key is only a text."""
    narrow = rabbitmq.declare("sink-words-narrow", "sink-words", "a.b.#")
    two = rabbitmq.declare("sink-words-two", "sink-words", "*.*")
    sent = [item("a.b/c"), item("a/b.c"), item("a.b.c"), item("*/b"), item("a/*")]
    named = [item("x", client="a.b"), item("x", client="a/b"), item("v1.2/x", client="#")]

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-words") as out:
            answers = await out.send(sent)
            assert answers is not None
            assert [isinstance(each, Poison) for each in answers] == [False, False, True, False, False]
        key = "${clientid}.${topic[1]}"
        async with opened(connection(rabbitmq.address), exchange="sink-words", routing_key=key) as out:
            answers = await out.send(named)
            assert answers is not None
            assert [isinstance(each, Poison) for each in answers] == [False, True, False]
            assert "or has a slash" in answers[1].text  # type: ignore[union-attr]

    run(test)

    assert rabbitmq.take(narrow) == []
    keys = [got.routing_key for got in rabbitmq.take(two)]
    assert keys == ["a/b.c", "a.b/c", "*.b", "a.*", "a/b.x", "#.v1/2"]


def test_a_blocked_connection_that_nobody_uses_is_cut(rabbitmq: RabbitMQ, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a reload no sink opens it again."""
    monkeypatch.setattr(blocked_module, "BLOCKED_LIMIT_S", 0.1)
    rabbitmq.declare("sink-cut", "sink-cut")

    async def test() -> None:
        out = sink(connection(rabbitmq.address), exchange="sink-cut")
        await out.open()
        rabbitmq.set_memory_alarm(True)
        try:
            with pytest.raises(ServiceUnavailable):
                await out.send([item()])
            await out.close()
            blocked = out._blocked.link
            assert blocked is not None
            await until(lambda: blocked.lost is not None, "it is cut")
        finally:
            rabbitmq.set_memory_alarm(False)

    run(test)


def test_a_deleted_exchange_is_waited_for(rabbitmq: RabbitMQ) -> None:
    """RabbitMQ closes the channel; the error says which exchange to create, and a new one takes everything."""
    queue = rabbitmq.declare("sink-deleted", "sink-deleted")

    async def test() -> None:
        async with opened(connection(rabbitmq.address), exchange="sink-deleted") as out:
            channel = await asyncio.to_thread(rabbitmq.channel)
            channel.exchange_delete("sink-deleted")
            channel.connection.close()
            for attempt in attempts(out):
                with pytest.raises(ServiceUnavailable, match="no exchange 'sink-deleted' in vhost '/': create it"):
                    await attempt()
            await asyncio.to_thread(rabbitmq.declare, queue, "sink-deleted")
            await out.open()
            assert await out.send([item(payload=b"again")]) is None

    run(test)

    assert [got.body for got in rabbitmq.take(queue)] == [b"again"]


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_a_node_that_ends_is_waited_for(rabbitmq: RabbitMQ, how: str) -> None:
    """What was confirmed is there afterwards, and the sink goes on."""
    queue = rabbitmq.declare(f"sink-{how}", x_queue_type="quorum")

    async def test() -> None:
        async with opened(connection(rabbitmq.address), routing_key=queue) as out:
            assert await out.send([item(payload=b"%d" % number) for number in range(100)]) is None
            await asyncio.to_thread(getattr(rabbitmq, how))
            for attempt in attempts(out):
                with pytest.raises(ServiceUnavailable):
                    await attempt()
            await asyncio.to_thread(rabbitmq.start)
            await send_at_last(out, [item(payload=b"after")])

    run(test)

    got = list(dict.fromkeys(taken.body for taken in rabbitmq.take(queue)))
    assert got == [*(b"%d" % number for number in range(100)), b"after"]


def test_the_next_server_is_tried(rabbitmq: RabbitMQ) -> None:
    """One of them is enough."""
    queue = rabbitmq.declare("sink-next")

    async def test() -> None:
        servers = (f"127.0.0.1:{free_port()}", rabbitmq.address)
        async with opened(evolve(connection(rabbitmq.address), servers=servers), routing_key=queue) as out:
            assert await out.send([item(payload=b"1")]) is None

    run(test)

    assert len(rabbitmq.take(queue)) == 1


def test_refusals_say_what_an_operator_must_change(rabbitmq: RabbitMQ, tmp_path: Path) -> None:
    """A wrong password, a wrong virtual host, no permission, other properties of what is declared."""
    rabbitmq.add_user("eve", "secret", may="^$")
    rabbitmq.declare("sink-classic")
    cases = [
        (
            user(rabbitmq.address, tmp_path, "ada", "wrong"),
            {},
            "connections.main: .*check username and pass",
        ),
        (connection(rabbitmq.address, virtual_host="none"), {}, "connections.main: .*check virtual_host"),
        (
            user(rabbitmq.address, tmp_path, "eve", "secret"),
            {"exchange": "made", "declare": True},
            "connections.main: .*access to exchange 'made'.*permissions",
        ),
        (
            connection(rabbitmq.address),
            {"declare": True, "queues": ("sink-classic",)},
            "differs .*'x-queue-type' for queue 'sink-classic'.*'quorum'.*current is none",
        ),
    ]

    async def test() -> None:
        for settings, more, text in cases:
            with pytest.raises(SinkRefused, match=text):
                await sink(settings, **more).open()

    run(test)


def test_what_is_declared_is_durable_and_bound(rabbitmq: RabbitMQ) -> None:
    """Only with ``declare``; and again does no harm."""

    async def test() -> None:
        for _ in range(2):
            settings = {"exchange": "sink-made", "declare": True, "queues": ("sink-made",), "binding_keys": ("a.#",)}
            async with opened(connection(rabbitmq.address), **settings) as out:
                assert await out.send([item("a/b")]) is None

    run(test)

    rabbitmq.declare("sink-made", "sink-made", "a.#", x_queue_type="quorum")  # as it should be, or it would fail
    assert len(rabbitmq.take("sink-made")) == 2


def test_nobody_there_is_not_a_refusal() -> None:
    """A server that does not listen is tried again."""

    async def test() -> None:
        with pytest.raises(ServiceUnavailable, match="refused"):
            await sink(connection(f"127.0.0.1:{free_port()}")).open()

    run(test)
