"""MessagePublisher to one client by its id, in a whole broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, ConnectWill, Puback
from kinmqtt_spi.services.queue import OverflowPolicy


def test_only_the_client_gets_it() -> None:
    """It need not have subscribed, and others that have do not get it."""
    house = House()
    one, other = house.connect("one"), house.connect("other").subscribe("#")

    house.connect("pub").publish("$p2p/one/a/b", b"x", qos=1)

    assert one.messages == [("a/b", b"x", 1)]
    assert other.messages == []


def test_it_is_kept_for_a_client_that_is_offline() -> None:
    """Where its session is."""
    house = House()
    house.connect("one", clean_start=False).drop()

    house.connect("pub").publish("$p2p/one/a", b"x", qos=2)

    assert house.connect("one", clean_start=False).messages == [("a", b"x", 2)]


def test_a_slash_in_a_client_id_is_quoted() -> None:
    """%2F stands for it."""
    house = House()
    one = house.connect("a/b")

    house.connect("pub").publish("$p2p/a%2Fb/t", b"x")

    assert one.messages == [("t", b"x", 0)]


@pytest.mark.parametrize(("topic", "reason"), [("$p2p/one", 0x90), ("$p2p//a", 0x90), ("$p2p/one/$SYS/a", 0x90)])
def test_what_names_no_client_or_topic_is_refused(topic: str, reason: int) -> None:
    """The topic behind the client id is one that a client may be told of by another."""
    house = House()
    house.connect("one")

    assert int(house.connect("pub", V5).publish(topic, b"x", qos=1).of(Puback)[0].reason) == reason


def test_nobody_there() -> None:
    """The message is gone, as one is that nobody has subscribed to, and counted."""
    house = House()

    reason = house.connect("pub", V5).publish("$p2p/nobody/a", b"x", qos=1).of(Puback)[0].reason
    samples: Sequence[Any] = house.assembly.metrics.snapshot(0.0, "test").samples

    assert int(reason) == 0
    assert [s.value for s in samples if s.name == "undeliverable" and s.labels["plugin"] == "direct"] == [1]


def test_a_full_queue_may_refuse() -> None:
    """A policy of refusing holds here too: 0x97."""
    house = House(max_queued_messages=1, queue_full=OverflowPolicy.REFUSE)
    house.connect("one", clean_start=False).drop()
    pub = house.connect("pub", V5)

    for _ in range(2):
        pub.publish("$p2p/one/a", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0, 0x97]


def test_a_will_may_be_for_one_client() -> None:
    """A will under $p2p/ goes to that client."""
    house = House()
    one = house.connect("one")

    house.connect("pub", will=ConnectWill("$p2p/one/a", b"bye")).drop()

    assert one.messages == [("a", b"bye", 0)]
