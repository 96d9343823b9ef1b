"""Behaviours that were once wrong, each in its own test."""

from __future__ import annotations

from typing import Any

import pytest
from harness import House

from kinmqtt.broker.settings import BrokerSettings
from kinmqtt.mqtt.packets import V5, Disconnect, Puback, Will
from kinmqtt_spi import NO_PROPERTIES, SPI_VERSION, Message, Subscription, hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured, ServiceUnavailable
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.reference.cluster import SingleNode
from kinmqtt_spi.reference.queue import MemoryQueueStore
from kinmqtt_spi.services.plugin import Requirements


class Routes(SingleNode):
    """A cluster backend that remembers what it was told of routes."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def routes_update(self, version: int, added: Any, removed: Any) -> None:
        self.told += [f"+{route.filter}" for route in added] + [f"-{route.filter}" for route in removed]

    @hookimpl
    def cluster_backend(self) -> Routes:
        return self


def test_a_route_stands_as_long_as_anybody_wants_it() -> None:
    """Other nodes hear of a filter's first subscriber and of its last, not of those between."""
    routes = Routes()
    house = House(plugins={"routes": routes})
    first = house.connect("a").subscribe("t")
    second = house.connect("b").subscribe("t")

    first.unsubscribe("t")
    assert routes.told == ["+t"]
    second.drop()

    assert routes.told == ["+t", "-t"]


class Full(MemoryQueueStore):
    """A queue store whose disk is full when it is told so."""

    full = False

    def apply(self, writes: Any) -> None:
        if self.full:
            raise ServiceUnavailable("the disk is full")
        super().apply(writes)

    @hookimpl
    def queue_store(self) -> Full:
        return self


def test_what_a_store_refuses_does_not_wait() -> None:
    """A message that could not be kept for an absent client is dropped and counted, and its publisher sent away."""
    store = Full()
    house = House(plugins={"full": store})
    house.connect("s", V5, expiry_s=60).subscribe("a", qos=1).drop()
    store.full = True

    pub = house.connect("p", V5).publish("a", b"x", qos=1)

    assert pub.of(Puback) == []
    assert pub.of(Disconnect)[0].reason is ReasonCode.SERVER_BUSY
    assert house.broker.sessions.by_id["s"].backlog == 0
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1


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

    with pytest.raises(ValueError, match="'a/\\+' is no topic name"):
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


def test_topics_of_wills_and_initial_subscriptions_are_limited_too() -> None:
    """The limit of topic levels holds for wills and for what plugins subscribe."""

    class Deep:
        @hookimpl
        def initial_subscriptions(self) -> list[Subscription]:
            return [Subscription("a/b/c/d")]

    house = House(plugins={"deep": Deep()}, max_topic_levels=3)

    refused = house.connect("w", V5, will=Will("a/b/c/d", b"", 0, False, NO_PROPERTIES))
    house.connect("c")

    assert refused.connack.reason is ReasonCode.TOPIC_NAME_INVALID
    assert house.broker.router.index.count() == 0


def test_what_nobody_got_is_not_counted_as_sent() -> None:
    """A QoS 0 message for an absent client counts as dropped, not as sent."""
    house = House(settings=BrokerSettings(sys_interval_s=0))
    house.connect("s", V5, expiry_s=60).subscribe("a").drop()

    house.connect("p").publish("a", b"x").publish("a", b"x")

    statistics = house.broker.runtime.statistics
    assert (statistics.messages_sent.value, statistics.dropped["offline"].value) == (0, 2)
