"""Topic rewrite in a whole broker."""

from __future__ import annotations

from typing import Literal

import pytest
from harness import House

from kinmqtt.mqtt.packets import V5, Puback, Suback
from kinmqtt.plugins.builtin.topic_rewrite import RewriteSettings, TopicRewriteSettings


def _rule(pattern: str, target: str, action: Literal["all", "publish", "subscribe"] = "all") -> RewriteSettings:
    return RewriteSettings(pattern=pattern, target=target, action=action)


def _house(*rules: RewriteSettings) -> House:
    return House(plugin_settings={"topic_rewrite": TopicRewriteSettings(rules=rules)})


def test_what_is_published_is_rewritten() -> None:
    """Subscribers of the new name get it under the new name; the first rule that fits is used."""
    house = _house(_rule("old/(.*)/(.*)", "new/$2/$1", "publish"), _rule("old/.*", "never", "publish"))
    sub = house.connect("sub").subscribe("#")

    house.connect("pub").publish("old/a/b", b"x", qos=1).publish("other", b"y")

    assert sub.messages == [("new/b/a", b"x", 0), ("other", b"y", 0)]


def test_subscriptions_are_rewritten_and_given_up_alike() -> None:
    """A client that unsubscribes by the name it used is rid of the subscription, shared ones too."""
    house = _house(_rule("old/(.+)", "new/$1", "subscribe"))
    sub = house.connect("sub", V5).subscribe("old/#").subscribe("$share/g/old/+")
    pub = house.connect("pub").publish("new/a", b"1")

    sub.unsubscribe("old/#").unsubscribe("$share/g/old/+")
    pub.publish("new/a", b"2")

    assert sub.messages == [("new/a", b"1", 0)] * 2
    assert sub.given_up == [0]


def test_names_are_filled_in() -> None:
    """${clientid} and ${username}; a client whose name is not one level is left as it is."""
    house = _house(_rule("me/(.*)", "clients/${clientid}/$1", "publish"))
    sub = house.connect("sub").subscribe("#")

    house.connect("one").publish("me/x", b"1")
    house.connect("a/b").publish("me/x", b"2")

    assert [topic for topic, _, _ in sub.messages] == ["clients/one/x", "me/x"]


@pytest.mark.parametrize("client_id", ["$1", "$9", "$0", "a$1b", r"\\1", "${username}"])
def test_a_client_is_not_read_as_a_reference(client_id: str) -> None:
    """Whatever a client is called stands in the topic as it is: it gets no group by its name, and no error."""
    house = _house(_rule("me/(.*)", "clients/${clientid}/$1"))
    client = house.connect(client_id, V5, username="eve").subscribe("me/+", 1)
    others = house.connect("all").subscribe("#")

    client.publish("me/x", b"1", qos=1)
    client.unsubscribe("me/+").publish("me/x", b"2", qos=1)

    assert client.messages == [(f"clients/{client_id}/x", b"1", 1)]
    assert [topic for topic, _, _ in others.messages] == [f"clients/{client_id}/x"] * 2
    assert (client.granted, client.given_up) == ([1], [0])
    assert [int(packet.reason) for packet in client.of(Puback)] == [0, 0]


def test_references_and_names_may_touch() -> None:
    """Each reference is filled in where it stands, twice too, and one to a group without a match with nothing."""
    house = _house(_rule("(a)/(b)?(c)", "$3$1${clientid}$1/$2x"))
    sub = house.connect("sub").subscribe("#")

    house.connect("$3").publish("a/c")

    assert [topic for topic, _, _ in sub.messages] == ["ca$3a/x"]


def test_a_rewritten_topic_has_no_more_levels_than_may_be() -> None:
    """The bound of the limits holds for what a rule makes too: 0x90, and what is at the bound goes."""
    house = House(
        plugin_settings={"topic_rewrite": TopicRewriteSettings(rules=(_rule("x/(.*)", "a/b/$1"),))},
        max_topic_levels=3,
    )
    sub = house.connect("sub").subscribe("#")

    pub = house.connect("pub", V5).publish("x/1", qos=1).publish("x/1/2", qos=1).publish("x/1", qos=1)

    assert [int(packet.reason) for packet in pub.of(Puback)] == [0, 0x90, 0]
    assert [topic for topic, _, _ in sub.messages] == ["a/b/1", "a/b/1"]


def test_a_rewritten_filter_has_no_more_levels_than_may_be() -> None:
    """A subscription that a rule makes too deep is refused and leaves nothing; what is at the bound is granted."""
    house = House(
        plugin_settings={"topic_rewrite": TopicRewriteSettings(rules=(_rule("x/(.*)", "a/b/$1"),))},
        max_topic_levels=3,
    )
    sub = house.connect("sub", V5).subscribe("x/1/+").subscribe("$share/g/x/1/+").subscribe("x/1")

    assert [[int(reason) >= 0x80 for reason in packet.reasons] for packet in sub.of(Suback)] == [
        [True],
        [True],
        [False],
    ]
    assert not sub.closed
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize(("pattern", "target"), [("x", "a/#"), ("x", "a/+"), ("x(.*)", "$1")])
def test_a_rewritten_topic_is_a_topic(pattern: str, target: str) -> None:
    """What a rule makes of a client's topic must not be one that nobody may publish to."""
    house = _house(_rule(pattern, target))

    assert int(house.connect("pub", V5).publish("x", b"", qos=1).of(Puback)[0].reason) == 0x90


def test_without_rules_it_stays_out_of_the_way() -> None:
    """The path of a message has no hook on it."""
    assert "topic_rewrite" not in House().assembly.manager.active


def test_a_reference_to_a_group_that_is_none() -> None:
    """Is found before it makes a topic shorter than was meant."""
    with pytest.raises(ValueError, match=r"target has \$3, and the pattern only 1 groups"):
        _rule("(x)", "a/$3")


def test_a_pattern_that_is_none_is_refused() -> None:
    """With what is wrong with it."""
    with pytest.raises(ValueError, match="no regular expression"):
        _rule("(", "x")
