"""Strategies for shared subscriptions, in a whole broker."""

from __future__ import annotations

import pytest

from core_harness.house import House, Peer
from kinmqtt.builtins.share_strategy import ShareStrategy, ShareStrategySettings, Strategy
from kinmqtt_spi import Message, Subscription
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.subscription import Subscriber
from kinmqtt_spi.values import Publisher


def _group(strategy: Strategy, members: int = 4) -> tuple[House, list[Peer]]:
    house = House(plugin_settings={"share_strategy": ShareStrategySettings(groups={"g": strategy})})
    return house, [house.connect(f"m{n}").subscribe("$share/g/t/#") for n in range(members)]


def _counts(members: list[Peer]) -> list[int]:
    return [len(member.messages) for member in members]


@pytest.mark.parametrize("strategy", [Strategy.STICKY, Strategy.HASH_CLIENT])
def test_a_publisher_keeps_its_member(strategy: Strategy) -> None:
    """Whatever it publishes goes to one member."""
    house, members = _group(strategy)
    pub = house.connect("pub")

    for n in range(8):
        pub.publish(f"t/{n}", b"x")

    assert sorted(_counts(members)) == [0, 0, 0, 8]


def test_a_topic_keeps_its_member() -> None:
    """Whoever publishes: a topic's messages stay in order."""
    house, members = _group(Strategy.HASH_TOPIC)

    for n in range(8):
        house.connect(f"pub{n}").publish("t/same", b"x")

    assert sorted(_counts(members)) == [0, 0, 0, 8]


@pytest.mark.parametrize("strategy", [Strategy.STICKY, Strategy.HASH_CLIENT, Strategy.HASH_TOPIC])
def test_a_lost_member_is_replaced(strategy: Strategy) -> None:
    """Another takes its place, and one only."""
    house, members = _group(strategy)
    pub = house.connect("pub").publish("t", b"1")
    [holder] = [member for member in members if member.messages]
    holder.drop()

    pub.publish("t", b"2").publish("t", b"3")

    others = [member for member in members if member is not holder]
    assert sorted(_counts(others)) == [0, 0, 2]


def _choose(strategy: Strategy, publisher: str, topic: str, members: list[str]) -> str:
    plugin = ShareStrategy(choice=lambda candidates: candidates[-1])
    plugin.configure(BareContext("share_strategy", ShareStrategySettings(default=strategy)))
    candidates = [Subscriber(name, Subscription("t")) for name in members]
    chosen = plugin.choose_member("g", "t", candidates, Message(topic, publisher=Publisher(publisher)))
    assert chosen is not None
    return chosen.client_id


@pytest.mark.parametrize("strategy", [Strategy.HASH_CLIENT, Strategy.HASH_TOPIC])
def test_a_hash_moves_only_what_it_must(strategy: Strategy) -> None:
    """When a member leaves, the keys of the others stay where they were; and all members are used."""
    names = [f"m{n}" for n in range(5)]
    keys = [f"k{n}" for n in range(200)]

    before = {key: _choose(strategy, key, key, names) for key in keys}
    after = {key: _choose(strategy, key, key, names[:-1]) for key in keys}

    assert set(before.values()) == set(names)
    assert all(after[key] == member for key, member in before.items() if member != "m4")


def test_random_is_what_the_choice_says() -> None:
    """Randomness is handed in."""
    assert _choose(Strategy.RANDOM, "p", "t", ["a", "b", "c"]) == "c"


def test_other_groups_go_by_turns() -> None:
    """A strategy holds for the groups it was given to."""
    house, _ = _group(Strategy.STICKY, members=1)
    members = [house.connect(f"o{n}").subscribe("$share/other/t") for n in range(2)]

    house.connect("pub").publish("t", b"1").publish("t", b"2")

    assert _counts(members) == [1, 1]
