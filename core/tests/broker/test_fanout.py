"""A topic's subscribers: what a session's subscriptions come to together."""

from __future__ import annotations

from itertools import product

import pytest

from core_harness.house import House
from kinmqtt.broker.routing.target import Target, target_of
from kinmqtt_spi.values import Subscription

FIELDS = ("session", "qos", "retain_as_published", "no_local", "identifiers", "subscription", "own")


def told(target: Target) -> list[object]:
    """Everything that a target says."""
    return [getattr(target, name) for name in FIELDS]


@pytest.mark.parametrize(
    ("qos", "no_local", "retain_as_published", "identifier"),
    list(product((0, 1, 2), (False, True), (False, True), (None, 7))),
)
def test_one_subscription_comes_to_what_it_says(
    qos: int, no_local: bool, retain_as_published: bool, identifier: int | None
) -> None:
    """A single one makes the target that it would make among several."""
    house = House()
    house.connect("c")
    session = house.broker.sessions.by_id["c"]
    only = Subscription("a", qos, no_local=no_local, retain_as_published=retain_as_published, identifier=identifier)

    one = told(target_of(session, [only]))
    twice = told(target_of(session, [only, only]))

    assert one == [session, qos, retain_as_published, no_local, () if identifier is None else (7,), only, None]
    assert one == [*twice[:4], twice[4][:1], *twice[5:]]  # type: ignore[index]


def test_overlapping_subscriptions_come_to_one_target() -> None:
    """The highest QoS counts, and a client's own messages go by those filters that let them pass (MQTT-3.3.4-2)."""
    house = House()
    house.connect("c")
    session = house.broker.sessions.by_id["c"]
    silent = Subscription("a", 2, no_local=True, identifier=1)
    plain = Subscription("#", 1, retain_as_published=True, identifier=2)

    target = target_of(session, [silent, plain])

    assert told(target)[:6] == [session, 2, True, True, (1, 2), silent]
    assert target.own is not None
    assert told(target.own) == [session, 1, True, False, (2,), plain, None]
