"""Faults of plugins: the faulty plugin fails, and everybody else is served."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from core_harness.house import House
from kinmqtt.mqtt.packets import (
    V5,
    Puback,
    Suback,
)
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import SPI_VERSION, Message, Properties, Subscription, hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured, ServiceUnavailable
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.session import MemorySessionStore
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.plugin import Requirements


def test_a_plugins_unfit_message_is_its_own_fault() -> None:
    """A plugin that makes a topic with a wildcard gets the message refused; the publisher stays connected."""

    class Careless:
        @hookimpl
        def publish_received(self, message: Message) -> Message:
            return message.replace(topic="a/#")

    pub = House(plugins={"careless": Careless()}).connect("p", V5).publish("a", b"x", qos=1)

    assert pub.of(Puback)[0].reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR
    assert not pub.closed


def test_a_plugin_can_not_publish_what_no_packet_carries() -> None:
    """context.publish refuses an invalid topic at once, in the plugin's face."""
    house = House()

    with pytest.raises(ValueError, match="'a/\\+' is not a topic name"):
        house.broker.publish(Message("a/+"))


def test_a_needed_plugin_that_abstains_is_missing() -> None:
    """A plugin that needs another does not start without it, though it is installed."""

    class Needy:
        @hookimpl
        def requirements(self) -> Requirements:
            return Requirements(SPI_VERSION, plugins=("shy",))

    class Shy:
        @hookimpl
        def configure(self) -> None:
            raise NotConfigured("no settings")

    with pytest.raises(AssemblyError, match="'needy' needs plugin 'shy', which is not active"):
        House(plugins={"needy": Needy(), "shy": Shy()})


class Unfit:
    """Makes messages and subscriptions that no packet can carry."""

    def __init__(self, properties: Properties = Properties(), topic: str | None = None) -> None:  # noqa: B008
        self.properties = properties
        self.topic = topic

    @hookimpl
    def publish_received(self, message: Message) -> Message | None:
        if message.topic != "bad":
            return None
        return message.replace(properties=self.properties, topic=self.topic)

    @hookimpl
    def subscribing(self, subscription: Subscription) -> Subscription | None:
        return evolve(subscription, qos=4) if subscription.filter == "bad" else None


@pytest.mark.parametrize(
    "unfit",
    [Unfit(Properties(response_topic="a/+")), Unfit(topic="a\ud800"), Unfit(Properties(content_type="a\0b"))],
)
def test_what_a_plugin_makes_unfit_hurts_itself_only(unfit: Unfit) -> None:
    """The message is refused, the subscription too, and everybody else is served."""
    house = House(plugins={"unfit": unfit})
    sub = house.connect("s", V5, clean_start=False, expiry_s=9).subscribe("bad").subscribe("#", qos=1)
    pub = house.connect("p", V5).publish("bad", b"x", qos=1).publish("good", b"y", qos=1)

    assert [packet.reasons[0] for packet in sub.of(Suback)] == [0x83, 1]
    assert [int(p.reason) for p in pub.of(Puback)] == [0x83, 0]
    assert sub.messages == [("good", b"y", 1)]


def test_a_hook_that_answers_nonsense_has_failed() -> None:
    """It is counted, refuses what it was asked about, and leaves nothing behind."""

    class Confused:
        @hookimpl
        def connection_opened(self) -> Any:
            return True

    house = House(plugins={"confused": Confused()})

    assert house.open().drop().closed
    assert house.broker.connections == set()


def test_a_broken_sys_topic_hurts_no_other() -> None:
    """Neither by its name nor by its value."""

    class Broken:
        @hookimpl
        def sys_topics(self) -> Any:
            return [
                SysTopic("$SYS/a+b", lambda: "1"),
                SysTopic("$SYS/n", lambda: 5),  # type: ignore[arg-type, return-value]
                SysTopic("$SYS/ok", lambda: "fine"),
            ]

    house = House(plugins={"broken": Broken()}, settings=BrokerSettings(sys_interval_s=1))
    sub = house.connect("s").subscribe("$SYS/ok")
    house.advance(2)

    assert sub.messages[0] == ("$SYS/ok", b"fine", 0)


def test_a_cluster_backend_is_stopped_where_the_start_fails_later() -> None:
    """What was started is stopped."""
    told: list[str] = []

    class Backend(SingleNode):
        def stop(self) -> None:
            told.append("stopped")

        @hookimpl
        def cluster_backend(self) -> Any:
            return self

    class Broken(MemorySessionStore):
        def iterate(self, cursor: object = None, limit: int = 1000) -> Any:
            raise ServiceUnavailable("no disk")

        @hookimpl
        def session_store(self) -> Any:
            return self

    house = House(plugins={"backend": Backend(), "broken": Broken()}, start=False)
    with pytest.raises(ServiceUnavailable):
        house.result(house.broker.start())

    assert told == ["stopped"]
