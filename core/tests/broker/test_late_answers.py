"""Answers of plugins that come after the client has sent more, or has gone."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.defer import Deferred

from core_harness.house import House
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    Puback,
    Publish,
)
from kinmqtt_spi import Message, Subscription, hookimpl
from kinmqtt_spi.services.authorization import Action


def test_two_things_that_are_waited_for() -> None:
    """An answer that leads to another wait loses none of the packets behind it, and keeps their order."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def authorize(self, request: Any) -> Any:
            if request.action is not Action.PUBLISH:
                return None
            asked.append(Deferred())
            return asked[-1]

        @hookimpl
        def publish_received(self, message: Message) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    sub = house.connect("s").subscribe("#", qos=1)
    pub = house.connect("p", V5)
    packets = [Publish.build(f"t/{n}", b"x", qos=1, packet_id=n + 1) for n in range(3)]
    pub.send_bytes(b"".join(encode(packet, V5) for packet in packets))
    while asked:
        asked.pop(0).callback(None)
        house.settle()

    assert [topic for topic, _, _ in sub.messages] == ["t/0", "t/1", "t/2"]
    assert [p.packet_id for p in pub.of(Puback)] == [1, 2, 3]


@pytest.mark.parametrize("late", ["authorize", "subscribing"])
def test_a_subscription_granted_too_late_is_none(late: str) -> None:
    """A client that has gone while a plugin thought leaves nothing in the index."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def authorize(self, request: Any) -> Any:
            return self._later() if late == "authorize" else None

        @hookimpl
        def subscribing(self, subscription: Subscription) -> Any:
            return self._later() if late == "subscribing" else None

        def _later(self) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    house.connect("a").subscribe("t").drop()
    asked.pop().callback(None)
    house.settle()

    assert house.broker.router.index.count() == 0


def test_an_unsubscription_of_a_former_connection_is_none() -> None:
    """What a plugin answers late concerns the connection that asked."""
    asked: list[Deferred[Any]] = []

    class Slow:
        @hookimpl
        def unsubscribing(self, filter: str) -> Any:
            asked.append(Deferred())
            return asked[-1]

    house = House(plugins={"slow": Slow()})
    house.connect("a", V5, expiry_s=60).subscribe("t").unsubscribe("t")
    again = house.connect("a", V5).subscribe("t")
    asked.pop().callback(None)
    house.settle()
    house.connect("p").publish("t", b"x")

    assert again.messages == [("t", b"x", 0)]
