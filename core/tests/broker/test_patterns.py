"""What one client's filters may cost everybody who publishes is bounded (``max_match_steps``)."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import House
from kinmqtt.broker.session.patterns import STEPS_OF_SHARED, Patterns
from kinmqtt.mqtt.packets import V5, V311
from kinmqtt.mqtt.topics import split_shared
from kinmqtt_spi.topics import matches
from kinmqtt_spi.values import Subscription

LEVEL = st.sampled_from(["a", "b", "+"])
FILTER = st.builds(
    lambda group, levels, many: group + "/".join([*levels, "#"] if many else levels),
    st.sampled_from(["", "", "$share/g/", "$share/h/"]),
    st.lists(LEVEL, min_size=1, max_size=4),
    st.booleans(),
)
TOPIC = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=5).map("/".join)


def subscription(full_filter: str) -> Subscription:
    """A subscription as a client writes it."""
    group, filter = split_shared(full_filter)
    return Subscription(filter, share_group=group)


def visited(full_filters: set[str], topic: str) -> int:
    """How many places behind a ``+`` a match of a topic comes by, level by level, whatever index matches."""
    levels = topic.split("/")
    places = set()
    for full_filter in full_filters:
        wanted = subscription(full_filter).filter.removesuffix("/#").split("/")
        for count in range(1, min(len(wanted), len(levels)) + 1):
            prefix = wanted[:count]
            if "+" in prefix and all(w in ("+", level) for w, level in zip(prefix, levels, strict=False)):
                places.add(tuple(prefix))
    return len(places)


@given(st.lists(FILTER, max_size=20), st.lists(st.integers(0, 19), max_size=10), TOPIC)
def test_no_topic_takes_more_steps_than_are_counted(filters: list[str], removed: list[int], topic: str) -> None:
    """Whatever a client subscribes to and gives up, a match comes by no more places and brings no more deliveries."""
    patterns = Patterns()
    held: set[str] = set()
    for filter in filters:
        if filter not in held:
            before = patterns.steps
            added = patterns.added_by(subscription(filter))
            patterns.add(subscription(filter))
            assert patterns.steps == before + added
            held.add(filter)
    for number in removed:
        if number < len(filters) and filters[number] in held:
            patterns.remove(subscription(filters[number]))
            held.discard(filters[number])

    shared = {each for each in held if each.startswith("$share/") and matches(subscription(each).filter, topic)}

    assert visited(held, topic) + STEPS_OF_SHARED * len(shared) <= patterns.steps + visited(shared, topic)
    again = Patterns()
    for filter in held:
        again.add(subscription(filter))
    assert patterns.steps == again.steps


@pytest.mark.parametrize(("version", "reason"), [(V5, 0x97), (V311, 0x80)])
def test_filters_that_make_every_match_expensive_are_refused(version: int, reason: int) -> None:
    """Of all filters of ten levels made of ``a`` and ``+`` some are granted, and the rest is over the bound."""
    house = House()
    peer = house.connect("c", version)

    for levels in product("a+", repeat=10):
        peer.subscribe("/".join(levels))

    granted = house.broker.router.index.count()
    assert 100 < granted < 250
    assert peer.granted == [reason]


def test_filters_of_one_pattern_are_as_many_as_one_likes() -> None:
    """A client may have one for each of thousands of devices: a topic matches one of them."""
    house = House(max_match_steps=4)
    peer = house.connect("c", V5)

    for number in range(200):
        peer.subscribe(f"site/{number}/+/state").subscribe(f"+/{number}")

    assert peer.granted == [0]
    assert house.broker.router.index.count() == 400


def test_exact_filters_and_trailing_wildcards_count_nothing() -> None:
    """A topic follows one way through all of them."""
    house = House(max_match_steps=1)
    peer = house.connect("c", V5)

    for number in range(50):
        peer.subscribe(f"a/{number}").subscribe("a/" * number + "#")

    assert house.broker.router.index.count() == 100


def test_shared_groups_of_one_client_are_bounded() -> None:
    """One message brings a client one delivery for each of its groups: 0x97 for more than a tenth of the steps."""
    house = House(max_match_steps=50)
    peer = house.connect("c", V5)

    for number in range(10):
        peer.subscribe(f"$share/g{number}/t")
    refused = peer.granted
    peer.unsubscribe("$share/g0/t").subscribe("$share/h/t")

    assert refused == [0x97]
    assert peer.granted == [0]
    assert house.broker.router.index.count() == 5


def test_what_is_there_already_may_be_subscribed_to_anew() -> None:
    """At the bound a subscription is replaced, and one of a pattern that is there is added."""
    house = House(max_match_steps=3)
    peer = house.connect("c", V5).subscribe("+/+/a").subscribe("+/b/c")

    peer.subscribe("+/+/a", 1).subscribe("+/+/b")

    assert peer.granted == [0]
    assert sorted(house.broker.sessions.by_id["c"].subscriptions) == ["+/+/a", "+/+/b"]


def test_subscriptions_that_come_back_count() -> None:
    """Those of a session that is taken up again are its client's."""
    house = House(max_match_steps=3)
    house.connect("c", V5, expiry_s=60).subscribe("+/+/a").drop()

    back = house.connect("c", V5, expiry_s=60, clean_start=False).subscribe("a/+")

    assert back.granted == [0x97]
