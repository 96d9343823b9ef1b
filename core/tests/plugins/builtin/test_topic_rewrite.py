"""Topic rewrite in a whole broker."""

from __future__ import annotations

from typing import Literal

import pytest
from harness import House

from kinmqtt.mqtt.packets import V5, Puback
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
