"""Topic rewrite in a whole broker."""

from __future__ import annotations

from typing import Literal

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core_harness.house import House
from kinmqtt.builtins.topic_rewrite import RewriteSettings, TopicRewrite, TopicRewriteSettings
from kinmqtt.mqtt.packets import V5, Puback, Suback
from kinmqtt_spi import Client, Message, Reject, Subscription
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.reasons import ReasonCode


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
    with pytest.raises(ValueError, match=r"target has \$3, but the pattern has only 1 groups"):
        _rule("(x)", "a/$3")


def test_a_pattern_that_is_none_is_refused() -> None:
    """With what is wrong with it."""
    with pytest.raises(ValueError, match="not a regular expression"):
        _rule("(", "x")


# Topics that begin with $

SPACES = [
    "$SYS/broker/x",
    "$share/g/t",
    "$delayed/1/a",
    "$plugin/delayed/k",
    "$CONTROL/x",
    "$p2p/b/a",
    "$other/x",
    "$",
]


@pytest.mark.parametrize("made", SPACES)
@pytest.mark.parametrize(("pattern", "target"), [("x/(.*)", "$1"), ("(x)/(.*)", "$2")])
def test_no_client_s_topic_becomes_one_of_the_broker_s(pattern: str, target: str, made: str) -> None:
    """Where the rule itself does not say so a result that begins with a dollar is refused, and reaches nobody."""
    house = _house(_rule(pattern, target))
    everybody = house.connect("s", V5)
    for filter in ("#", "$SYS/#", "$other/#", "$"):
        everybody.subscribe(filter)
    client = house.connect("c", V5)

    client.publish(f"x/{made}", b"x", qos=1, retain=True).subscribe(f"x/{made}")

    assert int(client.of(Puback)[0].reason) == ReasonCode.TOPIC_NAME_INVALID
    assert client.granted == [ReasonCode.TOPIC_FILTER_INVALID]
    assert everybody.messages == []
    assert house.broker.runtime.stores.retain.count() == 0


def test_a_client_s_name_makes_no_topic_of_the_broker_s() -> None:
    """Also where nothing but an empty group stands in front of it."""
    house = _house(_rule("me/(x)?(.*)", "$1${clientid}/$2"))

    client = house.connect("$SYS", V5).publish("me/a", b"x", qos=1).subscribe("me/#")

    assert int(client.of(Puback)[0].reason) == ReasonCode.TOPIC_NAME_INVALID
    assert client.granted == [ReasonCode.TOPIC_FILTER_INVALID]


def test_what_a_rule_itself_says_holds() -> None:
    """An operator may give clients another name for a topic of the broker's, and write a rule for delayed ones."""
    house = _house(
        _rule("status/(.*)", "$SYS/$1", "subscribe"), _rule(r"[$]delayed/(\d+)/old/(.*)", "$delayed/$1/new/$2")
    )
    client = house.connect("c", V5).subscribe("status/#").subscribe("new/#")

    client.publish("$delayed/1/old/a", b"x", qos=1)
    house.advance(1)

    assert sorted(filter for filter, _ in house.broker.router.index.filters()) == ["$SYS/#", "new/#"]
    assert client.messages == [("new/a", b"x", 0)]


def test_a_rule_brings_no_message_past_the_plugin_that_takes_such() -> None:
    """What a rule makes of a plain topic the plugin behind $delayed/ does not see, so it is refused."""
    house = _house(_rule("slow/(.*)", "$delayed/60/$1"))

    reason = house.connect("c", V5).publish("slow/a", b"x", qos=1).of(Puback)[0].reason

    assert reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


def test_giving_up_what_a_rule_would_refuse_is_no_error() -> None:
    """A subscription from before the rule can still be given up."""
    house = _house()
    house_with = _house(_rule("x/(.*)", "$1", "subscribe"))

    client = house_with.connect("c", V5).unsubscribe("x/$SYS/#")

    assert client.given_up == [ReasonCode.NO_SUBSCRIPTION_EXISTED]
    assert not client.closed
    assert house.connect("d", V5).unsubscribe("x/$SYS/#").given_up == [ReasonCode.NO_SUBSCRIPTION_EXISTED]


def _plugin(*rules: RewriteSettings, context: BareContext | None = None) -> TopicRewrite:
    plugin = TopicRewrite()
    settings = TopicRewriteSettings(rules=rules)
    bare = BareContext("topic_rewrite", settings) if context is None else context
    bare.settings = settings
    plugin.configure(bare)
    return plugin


def test_a_rule_that_makes_such_topics_is_told_of_once() -> None:
    """With the rule, the client, and what it made; a reload begins anew."""
    context = BareContext("topic_rewrite")
    rules = (_rule("x/(.*)", "$1"), _rule("y/(.*)", "$1"))
    plugin = _plugin(*rules, context=context)
    eve = Client("eve")

    for number in range(3):
        plugin.publish_received(eve, Message(f"x/$SYS/{number}"))
        plugin.subscribing(eve, Subscription(f"y/$SYS/{number}"))
    before = context.log.texts("warn")
    plugin.reload(TopicRewriteSettings(rules=rules))
    plugin.publish_received(eve, Message("x/$SYS/9"))

    assert len(before) == 2
    assert "'x/(.*)'" in before[0]
    assert "'eve'" in before[0]
    assert "'$SYS/0'" in before[0]
    assert len(context.log.texts("warn")) == 3


@pytest.mark.parametrize("target", ["$$1/x", "$SYS$1", "$${clientid}", "$share/g/$1", "$plugin/x"])
def test_a_target_that_can_not_be_meant_is_refused(target: str) -> None:
    """A beginning that clients would choose, and topics that are none, are mistakes in the settings."""
    with pytest.raises(ValueError, match=r"target .* begins with"):
        _rule("x/(.*)", target)


PIECES = st.sampled_from(["$1", "$2", "${clientid}", "${username}", "$", "a", "/", "$SYS", "$other/", "x/", "$3"])
NAMES = st.sampled_from(["$SYS", "$share", "$1", "c", "", "$", "a/b", "${username}"])
CLIENT_TOPICS = st.lists(
    st.sampled_from(["$SYS", "$share", "$delayed", "$", "a", "b", "", "1", "$1"]), min_size=1, max_size=4
).map("/".join)


@given(
    pattern=st.sampled_from(["(.*)()()", "(.*?)/(.*)()", "x?(.*)/(.)?(.*)", "(a)?(b)?(.*)"]),
    pieces=st.lists(PIECES, min_size=1, max_size=5),
    topic=CLIENT_TOPICS.filter(bool),
    client_id=NAMES,
    username=st.none() | NAMES,
)
def test_what_begins_with_a_dollar_is_the_operator_s_word(
    pattern: str, pieces: list[str], topic: str, client_id: str, username: str | None
) -> None:
    """Whatever rule, topic and names: a new name begins with a dollar only if the rule's first level is that word."""
    target = "".join(pieces)
    try:
        rule = _rule(pattern, target)
    except ValueError:
        assume(False)
    plugin = _plugin(rule)
    client = Client(client_id, username)

    message = plugin.publish_received(client, Message(topic))
    subscription = plugin.subscribing(client, Subscription(topic))

    made = [message.topic] if isinstance(message, Message) else []
    made += [subscription.filter] if isinstance(subscription, Subscription) else []
    for name in made:
        if name != topic and name.startswith("$"):
            assert name.split("/")[0] == target.split("/")[0]
            assert "$1" not in target.split("/")[0]
            assert "{" not in target.split("/")[0]
    assert isinstance(message, Reject) or not isinstance(subscription, Reject)
