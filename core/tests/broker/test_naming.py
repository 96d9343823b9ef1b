"""Control characters in names: of clients and of plugins, by default and where the settings allow them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from core_harness.house import House
from kinmqtt.mqtt.packets import V5, V311, Connect, ConnectWill, DisconnectPacket, Subscribe, SubscribeRequest
from kinmqtt.settings import LimitSettings
from kinmqtt_spi import Message, Properties, Subscription, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Authenticated, ConnectRequest, Identity, allow_as
from kinmqtt_spi.services.plugin import DeliveryResult

BELL = "a\x07"

ALLOW: dict[str, Any] = {"control_characters": "allow"}


class Maker:
    """Makes the names that it is told to."""

    def __init__(self, **names: Any) -> None:
        self.names = names
        self.topic: str | None = names.get("topic")

    @hookimpl
    def authenticate(self, request: ConnectRequest) -> Authenticated:
        return allow_as(Identity(**{key: self.names[key] for key in ("client_id", "username") if key in self.names}))

    @hookimpl
    def initial_subscriptions(self, client: Any) -> Sequence[Subscription]:
        subscriptions: Sequence[Subscription] = self.names.get("subscriptions", ())
        return subscriptions

    @hookimpl
    def publish_received(self, client: Any, message: Message) -> Message:
        return message if self.topic is None else message.replace(topic=self.topic)

    @hookimpl
    def delivering(self, client: Any, message: Message, subscription: Subscription) -> Message:
        return message.replace(payload=b"changed")

    @hookimpl
    def will_publishing(self, client: Any, message: Message) -> Message:
        return message if self.topic is None else message.replace(topic=self.topic)


def test_refused_by_default() -> None:
    """The strict way needs no setting."""
    assert LimitSettings().refuses_control_characters
    assert not LimitSettings(control_characters="allow").refuses_control_characters


@pytest.mark.parametrize("where", ["topic", "response topic"])
def test_a_topic_with_an_alias_is_judged(where: str) -> None:
    """No way around by a topic alias, nor behind another topic that is remembered (section 1.5.4)."""
    house = House()
    sub = house.connect("s", V5).subscribe("#")
    peer = house.connect("c", V5).publish("a", b"1").publish("a", b"2")
    if where == "topic":
        peer.publish(BELL, b"3", properties=Properties(topic_alias=1))
    else:
        peer.publish("a", b"3", properties=Properties(response_topic=BELL))

    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.MALFORMED_PACKET]


@pytest.mark.parametrize("filter", [f"$share/{BELL}/t", f"$share/g/{BELL}", BELL])
def test_every_part_of_a_filter_is_judged(filter: str) -> None:
    """The name of a share, too; one bad filter of several, and none of them is subscribed to (section 1.5.4)."""
    house = House()
    requests = (SubscribeRequest("good"), SubscribeRequest(filter))
    peer = house.connect("c", V5).send(Subscribe(1, requests))

    assert [packet.reason for packet in peer.of(DisconnectPacket)] == [ReasonCode.MALFORMED_PACKET]
    assert house.broker.router.index.count() == 0


def test_what_is_allowed_is_taken_everywhere() -> None:
    """With the setting, client id, user name, will, topic, filter and share name are as they were sent."""
    house = House(**ALLOW)
    sub = house.connect("s\x01", V5).subscribe(BELL).subscribe(f"$share/g\x02/{BELL}")
    peer = house.connect(BELL, V5, username="u\x7f", will=ConnectWill(BELL, b"will", 0, False))

    peer.publish(BELL, b"x", properties=Properties(response_topic="r\x9f"))
    peer.drop()

    assert sorted(payload for _, payload, _ in sub.messages) == [b"will", b"will", b"x", b"x"]


def test_payload_and_user_properties_are_no_names() -> None:
    """What MQTT only carries is not looked at."""
    house = House()
    sub = house.connect("s", V5).subscribe("t")

    house.connect("p", V5).publish("t", b"\x07", properties=Properties(user_property=(("\x07", "\x07"),)))

    assert sub.messages == [("t", b"\x07", 0)]


def test_a_reload_holds_at_once() -> None:
    """For the next topic that a connection uses; what it has used is remembered with its rights."""
    house = House(**ALLOW)
    peer = house.connect("c", V311).publish("a\x01")
    house.broker.runtime.limits = evolve(house.broker.runtime.limits, control_characters="refuse")

    peer.publish("a\x02")

    assert peer.closed


# Plugins


@pytest.mark.parametrize(
    "message", [Message(BELL, b""), Message("t", b"", properties=Properties(response_topic=BELL))]
)
def test_what_a_plugin_publishes_follows_the_rule(message: Message) -> None:
    """A subscriber may close its connection over it: the plugin hears of it instead."""
    house = House()
    sub = house.connect("s", V5).subscribe("#")

    with pytest.raises(ValueError, match=r"U\+0007.*control_characters"):
        house.broker.publish(message)
    with pytest.raises(ValueError, match=r"U\+0007.*control_characters"):
        house.broker.deliver("s", message)

    assert sub.messages == []


def test_what_a_plugin_publishes_may_be_allowed() -> None:
    """The setting holds for plugins as well."""
    house = House(**ALLOW)
    sub = house.connect("s", V5).subscribe("#")

    house.broker.publish(Message(BELL, b"1"))
    delivered = house.broker.deliver("s", Message(BELL, b"2"))
    house.settle()

    assert delivered is DeliveryResult.TAKEN
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]


def test_a_topic_that_an_intercept_made_is_refused() -> None:
    """It is the plugin's mistake, not the client's, who goes on."""
    house = House(plugins={"maker": Maker(topic=BELL)})
    sub = house.connect("s", V5).subscribe("#")
    peer = house.connect("c", V5).publish("t", b"x", qos=1)

    assert sub.messages == []
    assert not peer.closed
    assert peer.packets[-1].reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR  # type: ignore[union-attr]


def test_a_topic_that_is_older_than_the_setting_may_be_worked_on() -> None:
    """What a plugin changes of a message that is kept since is no name of its making."""
    house = House(plugins={"maker": Maker()}, **ALLOW)
    house.connect("p", V5).publish(BELL, b"x", retain=True)
    house.broker.runtime.limits = evolve(house.broker.runtime.limits, control_characters="refuse")

    sub = house.connect("s", V5).subscribe("#")

    assert [(topic, payload) for topic, payload, _ in sub.messages] == [(BELL, b"changed")]


def test_a_will_that_an_intercept_renamed_unfit_is_left_out() -> None:
    """As with any other unfit will of a plugin's making: where it was to go, nobody knows."""
    house = House(plugins={"maker": Maker(topic=BELL)})
    heir = house.connect("heir", V5).subscribe("#")

    house.connect("c", V5, will=ConnectWill("w", b"gone", 0, False)).drop()

    assert heir.messages == []


@pytest.mark.parametrize("subscription", [Subscription(BELL, 0), Subscription("t", 0, BELL)])
def test_a_subscription_that_a_plugin_made_is_left_out(subscription: Subscription) -> None:
    """The others are made, and the client is let in."""
    house = House(plugins={"maker": Maker(subscriptions=(subscription, Subscription("good", 0)))})

    house.connect("c", V5)

    assert list(house.broker.sessions.by_id["c"].subscriptions) == ["good"]
    assert house.broker.router.index.count() == 1


@pytest.mark.parametrize(
    ("names", "reason"),
    [
        ({"client_id": BELL}, ReasonCode.CLIENT_IDENTIFIER_NOT_VALID),
        ({"username": BELL}, ReasonCode.BAD_USER_NAME_OR_PASSWORD),
    ],
)
def test_an_identity_that_a_plugin_made_is_refused(names: dict[str, str], reason: ReasonCode) -> None:
    """No client has a name by a plugin, or by its certificate, that it could not have by its CONNECT."""
    refused = House(plugins={"maker": Maker(**names)}).open(V5).send(Connect(V5, "c"))
    allowed = House(plugins={"maker": Maker(**names)}, **ALLOW).open(V5).send(Connect(V5, "c"))

    assert refused.connack.reason is reason
    assert allowed.connack.reason is ReasonCode.SUCCESS


# Any text at all

names = st.text(st.characters(codec="utf-8", exclude_characters="\0+#"), min_size=1, max_size=8)


@given(names, st.sampled_from(["refuse", "allow"]), st.sampled_from(["topic", "filter", "client id", "user name"]))
def test_any_name(name: str, setting: str, where: str) -> None:
    """A client is closed for a name exactly where it has one of the code points, and the settings refuse them."""
    house = House(control_characters=setting)
    bad = any(
        ord(each) < 0x20 or 0x7F <= ord(each) <= 0x9F or ord(each) & 0xFFFE == 0xFFFE or 0xFDD0 <= ord(each) <= 0xFDEF
        for each in name
    )
    if where == "topic":
        peer = house.connect("c").publish(name)
    elif where == "filter":
        peer = house.connect("c").subscribe(name)
    else:
        is_id = where == "client id"
        peer = house.open().send(Connect(V311, name if is_id else "c", username=None if is_id else name))

    assert peer.closed == (bad and setting == "refuse")
