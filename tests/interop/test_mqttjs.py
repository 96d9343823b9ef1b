"""MQTT.js on Node against a running broker, in MQTT 3.1, 3.1.1 and 5."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from core_harness.brokers import BrokerProcess
from root_harness.mqttjs import Driver, RefusedError

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent

each_version = pytest.mark.parametrize("version", [3, 4, 5], ids=["31", "311", "5"])


@pytest.fixture
def driver(broker: BrokerProcess) -> Iterator[Driver]:
    """A Node process of the test's own."""
    made = Driver(f"mqtt://127.0.0.1:{broker.port}")
    try:
        yield made
    finally:
        made.process.end()


@pytest.fixture
def topic() -> str:
    """A topic of the test's own, for all tests of the module share a broker."""
    return f"mqttjs/{uuid4().hex[:8]}"


@each_version
def test_messages_arrive(driver: Driver, topic: str, version: int) -> None:
    """Messages are delivered with the QoS they were sent with."""
    driver.connect("sub", version)
    driver.connect("pub", version)
    assert driver.subscribe("sub", f"{topic}/#", qos=2) == [2]

    for qos in range(3):
        driver.publish("pub", f"{topic}/a", "\x00\xff", qos=qos)

        message = driver.message("sub")
        assert (message["topic"], message["payload"], message["qos"]) == (f"{topic}/a", "\x00\xff", qos)


@each_version
def test_a_retained_message(driver: Driver, topic: str, version: int) -> None:
    """A retained message comes to whoever subscribes later, until an empty one takes it away."""
    driver.connect("pub", version)
    driver.publish("pub", topic, "kept", qos=1, retain=True)
    driver.connect("sub", version)
    driver.subscribe("sub", topic, qos=1)
    message = driver.message("sub")
    assert (message["payload"], message["retain"]) == ("kept", True)

    driver.publish("pub", topic, "", qos=1, retain=True)
    driver.connect("late", version)
    driver.subscribe("late", topic, qos=1)
    driver.publish("pub", topic, "live", qos=1)

    message = driver.message("late")
    assert (message["payload"], message["retain"]) == ("live", False)


@each_version
def test_the_will_of_a_killed_client(broker: BrokerProcess, driver: Driver, topic: str, version: int) -> None:
    """The will of a client whose process was killed is published."""
    driver.connect("watcher", version)
    driver.subscribe("watcher", topic, qos=1)
    victim = Driver(f"mqtt://127.0.0.1:{broker.port}")
    try:
        victim.connect("victim", version, will={"topic": topic, "payload": "gone", "qos": 1, "retain": False})

        victim.process.signal(signal.SIGKILL)

        message = driver.message("watcher")
        assert (message["payload"], message["qos"]) == ("gone", 1)
    finally:
        victim.process.end()


@each_version
@pytest.mark.parametrize("qos", [1, 2])
def test_what_was_published_while_a_client_was_away(driver: Driver, topic: str, version: int, qos: int) -> None:
    """A kept session gets what came while its client was away, in order and complete."""
    session: dict[str, Any] = {"clientId": f"k{topic[-8:]}", "clean": False}
    if version == 5:
        session["properties"] = {"sessionExpiryInterval": 600}
    driver.connect("first", version, **session)
    driver.subscribe("first", topic, qos=2)
    driver.ask("end", "first")
    driver.connect("pub", version)
    for number in range(30):
        driver.publish("pub", topic, str(number), qos=qos)

    connack = driver.connect("second", version, **session)

    assert connack["sessionPresent"] is (version != 3)
    assert [int(driver.message("second")["payload"]) for _ in range(30)] == list(range(30))


@each_version
def test_a_shared_subscription(driver: Driver, topic: str, version: int) -> None:
    """Of clients that share a subscription each gets a part of the messages, and together they get each once."""
    for member in ("one", "two"):
        driver.connect(member, version)
        driver.subscribe(member, f"$share/team/{topic}", qos=1)
    driver.connect("pub", version)

    for word in [*range(40), "last", "last"]:
        driver.publish("pub", topic, str(word), qos=1)

    parts = []
    for member in ("one", "two"):
        part: list[int] = []
        while (payload := driver.message(member)["payload"]) != "last":
            part.append(int(payload))
        parts.append(part)
    assert all(parts)
    assert sorted(parts[0] + parts[1]) == list(range(40))


def test_properties_of_a_message(driver: Driver, topic: str) -> None:
    """User properties and the others come through, with the subscription's identifier."""
    driver.connect("sub", 5)
    driver.connect("pub", 5)
    driver.subscribe("sub", topic, qos=1, properties={"subscriptionIdentifier": 42})
    sent = {
        "userProperties": {"colour": ["red", "blue"], "size": "1"},
        "contentType": "text/plain",
        "responseTopic": "answers",
        "payloadFormatIndicator": True,
    }

    driver.publish("pub", topic, "x", qos=1, properties=sent)

    assert driver.message("sub")["properties"] == {**sent, "subscriptionIdentifier": 42}


def test_topic_aliases(driver: Driver, topic: str) -> None:
    """Aliases that MQTT.js gives out by itself are understood."""
    connack = driver.connect("pub", 5, autoAssignTopicAlias=True)
    assert connack["properties"]["topicAliasMaximum"] > 0
    driver.connect("sub", 5)
    driver.subscribe("sub", f"{topic}/#", qos=1)

    for number in range(20):
        driver.publish("pub", f"{topic}/{number % 2}", str(number), qos=1)

    got = [driver.message("sub") for _ in range(20)]
    assert [(message["topic"], message["payload"]) for message in got] == [
        (f"{topic}/{number % 2}", str(number)) for number in range(20)
    ]


def test_reason_codes(driver: Driver, topic: str) -> None:
    """A client hears that it may not publish, that it had no such subscription, and that it was taken over."""
    driver.connect("client", 5, clientId=topic[-8:])

    with pytest.raises(RefusedError) as refused:
        driver.publish("client", "$SYS/mine", "x", qos=1)
    assert refused.value.code == 0x87
    assert driver.ask("unsubscribe", "client", topic=topic) == [0x11]

    driver.connect("other", 5, clientId=topic[-8:])
    assert driver.event("disconnect", "client")["reason"] == 0x8E


def test_a_session_that_has_expired(driver: Driver, topic: str) -> None:
    """Without a session expiry interval a session ends with its connection."""
    driver.connect("first", 5, clientId=topic[-8:], clean=False)
    driver.ask("end", "first")

    assert driver.connect("second", 5, clientId=topic[-8:], clean=False)["sessionPresent"] is False


def test_a_lost_connection_and_a_will_delay(driver: Driver, topic: str) -> None:
    """A client that is back before its will's delay is over is not announced as gone."""
    driver.connect("watcher", 5)
    driver.subscribe("watcher", f"{topic}/#", qos=1)
    session: dict[str, Any] = {
        "clientId": topic[-8:],
        "clean": False,
        "properties": {"sessionExpiryInterval": 600},
        "will": {"topic": f"{topic}/will", "payload": "gone", "properties": {"willDelayInterval": 1}},
    }
    driver.connect("first", 5, **session)
    driver.ask("kill", "first")
    driver.event("close", "first")
    assert driver.connect("second", 5, **session)["sessionPresent"]

    driver.ask("kill", "second")

    assert driver.message("watcher")["payload"] == "gone"
