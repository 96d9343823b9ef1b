"""Plugins that hang on a notice, through a whole broker."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve
from twisted.internet.defer import Deferred, succeed

from core_harness.faulty import logged, plugin
from core_harness.house import House
from kinmqtt_spi.services.plugin import Health, HealthState


def test_a_plugin_that_hangs_on_a_notice_is_told_the_next() -> None:
    """One client's message that it never comes to an end with does not make it deaf."""
    told: list[str] = []
    never = succeed(None).addCallback(lambda _: Deferred())

    def take(message: Any) -> Any:
        told.append(message.topic)
        return never if message.topic == "1" else None

    hanging = plugin(published=take)
    house = House(plugins={"hanging": hanging})
    peer = house.connect("a").publish("1").publish("2")

    with logged() as lines:
        house.advance(31)
        peer.publish("3")

    assert told == ["1", "2", "3"]
    assert lines == [
        "plugin hanging: published has not ended within 30 s and is cancelled; notices that waited for it: 1"
    ]


def test_how_long_a_notice_may_take_is_a_setting() -> None:
    """And a reload changes it."""
    house = House(plugins={"hanging": plugin(published=lambda message: Deferred())}, notice_time_limit_s=5)
    peer = house.connect("a").publish("1")

    house.advance(6)
    before = house.assembly.metrics.sum("plugin.notices_timed_out")
    limits = evolve(house.broker.runtime.limits, notice_time_limit_s=100)
    house.result(house.broker.reload(lambda name, settings_class: None, limits))
    peer.publish("2")
    house.advance(50)

    assert (before, house.assembly.metrics.sum("plugin.notices_timed_out")) == (1, 1)


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        (None, Health(HealthState.DEGRADED, "published did not end within 30 s")),
        (Health(HealthState.HEALTHY, "7 users"), Health(HealthState.DEGRADED, "published … 30 s; 7 users")),
        (Health(HealthState.FAILED), Health(HealthState.FAILED, "published … 30 s")),
    ],
)
def test_a_plugin_that_hangs_is_degraded(own: Health | None, expected: Health) -> None:
    """Whatever it says of itself, until it has come to an end with something."""
    replies: list[Deferred[Any] | None] = [Deferred(), Deferred(), None]
    hooks: dict[str, Any] = {} if own is None else {"health": lambda: own}
    hanging = plugin(published=lambda message: replies[int(message.topic)], **hooks)
    house = House(plugins={"hanging": hanging})
    peer = house.connect("a").publish("0").publish("1")

    house.advance(31)
    found = house.result(house.broker.health())["hanging"]
    peer.publish("2")
    house.advance(31)
    later = house.result(house.broker.health()).get("hanging")

    long = "published did not end within 30 s"
    assert found == evolve(expected, text=expected.text.replace("published … 30 s", long))
    assert later == own


def test_a_broker_that_stops_names_the_notice_that_hangs() -> None:
    """It is given the ten seconds of a stop, cancelled, and named."""
    house = House(plugins={"hanging": plugin(published=lambda message: Deferred())})
    house.connect("a").publish("1").publish("2").disconnect()

    with logged() as lines:
        stopped = Deferred.fromCoroutine(house.broker.stop())
        house.advance(11)

    assert stopped.called
    assert lines == [
        "plugin hanging: the broker stops before published has ended; it is cancelled; notices lost behind it: 1"
    ]
