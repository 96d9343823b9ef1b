"""aiomqtt, paho's asyncio face, against a running broker, in MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

import aiomqtt
import pytest
from aiomqtt import Client, Message, ProtocolVersion, Will
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from core_harness.brokers import BrokerProcess

pytestmark = pytest.mark.interop

TIME_LIMIT_S = 20.0

each_version = pytest.mark.parametrize(
    "version", [ProtocolVersion.V31, ProtocolVersion.V311, ProtocolVersion.V5], ids=["31", "311", "5"]
)


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, for all tests of the module share a broker."""
    return f"aiomqtt/{uuid4().hex[:8]}"


def in_time(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a test's coroutine to its end, which must come."""
    asyncio.run(asyncio.wait_for(test(), TIME_LIMIT_S))


@asynccontextmanager
async def client(broker: BrokerProcess, version: ProtocolVersion, **options: Any) -> AsyncIterator[Client]:
    """A connected client."""
    options.setdefault("identifier", f"a{uuid4().hex[:12]}")
    async with Client("127.0.0.1", broker.port, protocol=version, **options) as connected:
        yield connected


async def next_message(subscriber: Client) -> Message:
    """The next message."""
    return await anext(aiter(subscriber.messages))


def kept(version: ProtocolVersion, identifier: str) -> dict[str, Any]:
    """What asks for a session that outlives its connection."""
    if version is not ProtocolVersion.V5:
        return {"identifier": identifier, "clean_session": False}
    properties = Properties(PacketTypes.CONNECT)
    properties.SessionExpiryInterval = 600
    return {"identifier": identifier, "clean_start": False, "properties": properties}


@each_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_message_arrives(broker: BrokerProcess, topic: str, version: ProtocolVersion, qos: int) -> None:
    """A message is delivered with the QoS it was sent with."""

    async def test() -> None:
        async with client(broker, version) as sub, client(broker, version) as pub:
            await sub.subscribe(f"{topic}/#", 2)

            await pub.publish(f"{topic}/a", b"x", qos)

            message = await next_message(sub)
            assert (str(message.topic), message.payload, message.qos) == (f"{topic}/a", b"x", qos)

    in_time(test)


@each_version
def test_a_retained_message(broker: BrokerProcess, topic: str, version: ProtocolVersion) -> None:
    """A retained message comes to whoever subscribes later."""

    async def test() -> None:
        async with client(broker, version) as pub, client(broker, version) as sub:
            await pub.publish(topic, b"kept", 1, retain=True)

            await sub.subscribe(topic, 1)

            message = await next_message(sub)
            assert (message.payload, message.retain) == (b"kept", True)
            await pub.publish(topic, b"", 1, retain=True)

    in_time(test)


@each_version
def test_the_will_of_a_lost_client(broker: BrokerProcess, topic: str, version: ProtocolVersion) -> None:
    """The will of a client whose socket was closed beneath it is published."""

    async def test() -> None:
        async with client(broker, version) as watcher:
            await watcher.subscribe(topic, 1)
            with pytest.raises(aiomqtt.MqttError):
                async with client(broker, version, will=Will(topic, b"gone", 1)) as lost:
                    lost._client.socket().shutdown(2)  # type: ignore[union-attr]

                    message = await next_message(watcher)
                    assert (message.payload, message.qos) == (b"gone", 1)
                    await next_message(lost)

    in_time(test)


@each_version
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_published_while_a_client_was_away(
    broker: BrokerProcess, topic: str, version: ProtocolVersion, qos: int
) -> None:
    """A kept session gets what came while its client was away, in order and complete."""

    async def test() -> None:
        session = kept(version, f"k{topic[-8:]}")
        async with client(broker, version, **session) as first:
            await first.subscribe(topic, 2)
        async with client(broker, version) as pub:
            for number in range(50):
                await pub.publish(topic, str(number), qos)

        async with client(broker, version, **session) as second:
            got = [await next_message(second) for _ in range(50)]

        assert [int(message.payload) for message in got] == list(range(50))

    in_time(test)


@each_version
def test_a_shared_subscription(broker: BrokerProcess, topic: str, version: ProtocolVersion) -> None:
    """Of clients that share a subscription each gets a part of the messages, and together they get each once."""

    async def numbers_until_last(member: Client) -> list[int]:
        numbers: list[int] = []
        async for message in member.messages:
            if message.payload == b"last":
                break
            numbers.append(int(message.payload))
        return numbers

    async def test() -> None:
        async with client(broker, version) as one, client(broker, version) as two, client(broker, version) as pub:
            for member in (one, two):
                await member.subscribe(f"$share/team/{topic}", 1)

            for word in [*range(40), "last", "last"]:
                await pub.publish(topic, str(word), 1)

            parts = await asyncio.gather(numbers_until_last(one), numbers_until_last(two))
        assert all(parts)
        assert sorted(parts[0] + parts[1]) == list(range(40))

    in_time(test)


def test_properties_of_a_message(broker: BrokerProcess, topic: str) -> None:
    """User properties and the answer's address come through, with the subscription's identifier."""
    sent = Properties(PacketTypes.PUBLISH)
    sent.UserProperty = [("colour", "red"), ("colour", "blue")]
    sent.ResponseTopic = "answers"
    wanted = Properties(PacketTypes.SUBSCRIBE)
    wanted.SubscriptionIdentifier = 77

    async def test() -> None:
        version = ProtocolVersion.V5
        async with client(broker, version) as sub, client(broker, version) as pub:
            await sub.subscribe(topic, 1, properties=wanted)

            await pub.publish(topic, b"x", 1, properties=sent)

            told: Any = (await next_message(sub)).properties
        assert told is not None
        assert told.UserProperty == [("colour", "red"), ("colour", "blue")]
        assert (told.ResponseTopic, told.SubscriptionIdentifier) == ("answers", [77])

    in_time(test)


def test_a_hundred_clients_at_once(broker: BrokerProcess, topic: str) -> None:
    """A hundred clients that publish at once each get an answer, and one subscriber gets everything."""

    async def one(number: int) -> None:
        async with client(broker, ProtocolVersion.V5) as pub:
            await pub.publish(topic, str(number), 1)

    async def test() -> None:
        async with client(broker, ProtocolVersion.V311) as sub:
            await sub.subscribe(topic, 1)
            await asyncio.gather(*(one(number) for number in range(100)))
            got = [await next_message(sub) for _ in range(100)]
        assert sorted(int(message.payload) for message in got) == list(range(100))

    in_time(test)
