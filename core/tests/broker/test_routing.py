"""Routing: routes told to other nodes, messages that reach nobody, no-local, and clocks set back."""

from __future__ import annotations

from typing import Any

from core_harness.house import House
from kinmqtt.mqtt.packets import (
    V5,
    DisconnectPacket,
    Puback,
    Publish,
)
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Properties, hookimpl
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.memory.cluster import SingleNode
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.reasons import ReasonCode


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
    assert pub.of(DisconnectPacket)[0].reason is ReasonCode.SERVER_BUSY
    assert house.broker.sessions.by_id["s"].queue.count == 0
    assert house.broker.runtime.statistics.dropped["store_failed"].value == 1


def test_what_nobody_got_is_not_counted_as_sent() -> None:
    """A QoS 0 message for an absent client counts as dropped, not as sent."""
    house = House(settings=BrokerSettings(sys_interval_s=0))
    house.connect("s", V5, expiry_s=60).subscribe("a").drop()

    house.connect("p").publish("a", b"x").publish("a", b"x")

    statistics = house.broker.runtime.statistics
    assert (statistics.messages_sent.value, statistics.dropped["offline"].value) == (0, 2)


def test_a_clock_set_back_freezes_nothing() -> None:
    """The newer of two retained messages is the one that came later [MQTT-3.3.1-5]."""
    house = House()
    pub = house.connect("p").publish("t", b"old", retain=True)
    house.clock.step(-3600)

    pub.publish("t", b"new", retain=True)
    first = house.connect("a").subscribe("t").messages
    pub.publish("t", b"", retain=True)

    assert first == [("t", b"new", 0)]
    assert house.connect("b").subscribe("t").messages == []


def test_no_local_beside_another_filter() -> None:
    """A client's own message comes by the filters that want it, with their QoS and identifiers [MQTT-3.8.3-3]."""
    house = House()
    peer = house.connect("a", V5)
    peer.subscribe("a/#", 2, Properties(subscription_identifier=(1,)), no_local=True)
    peer.subscribe("a/b", 0, Properties(subscription_identifier=(2,)))

    peer.publish("a/b", b"own", qos=1)
    house.connect("p").publish("a/b", b"other", qos=1)

    own, other = peer.of(Publish)
    assert (own.qos, own.properties.subscription_identifier) == (0, (2,))
    assert (other.qos, set(other.properties.subscription_identifier or ())) == (1, {1, 2})
