"""MQTT 5 properties that the broker makes or leaves out: aliases, response information, reason strings."""

from __future__ import annotations

from typing import Any

import pytest

from core_harness.house import House, Peer
from kinmqtt.mqtt.packets import V5, V311, Puback, Publish
from kinmqtt.settings import BrokerSettings
from kinmqtt_spi import Decision, Properties, deny, hookimpl
from kinmqtt_spi.services.authorization import AuthorizationRequest


def _aliased(house: House, maximum: int, **more: Any) -> Peer:
    properties = Properties(topic_alias_maximum=maximum, **more)
    return house.connect("sub", V5, properties=properties).subscribe("#", qos=1)


def _seen(peer: Peer) -> list[tuple[str, int | None]]:
    return [(p.topic, p.properties.topic_alias) for p in peer.of(Publish)]


@pytest.mark.parametrize("qos", [0, 1])
def test_a_client_that_takes_aliases_gets_them(qos: int) -> None:
    """The name once, then its number [MQTT-3.3.2-8]; others get the name."""
    house = House()
    sub, other = _aliased(house, 5), house.connect("other", V5).subscribe("#")
    pub = house.connect("pub")

    for topic in ("topic/1", "topic/1", "topic/2", "topic/1"):
        pub.publish(topic, b"x", qos=qos)

    assert _seen(sub) == [("topic/1", 1), ("", 1), ("topic/2", 2), ("", 1)]
    assert [topic for topic, _ in _seen(other)] == ["topic/1", "topic/1", "topic/2", "topic/1"]


def test_no_more_aliases_than_the_client_takes() -> None:
    """Never a number above its maximum [MQTT-3.1.2-26], and none without one [MQTT-3.1.2-27]."""
    house = House(topic_aliases_used=3)
    few, many, none = (
        _aliased(house, 2),
        _aliased(House(topic_aliases_used=3), 9),
        house.connect("n", V5).subscribe("#"),
    )
    for peer in (few, many):
        pub = peer.harness.connect("pub")
        for number in range(5):
            pub.publish(f"topic/{number}", b"x")

    assert max(alias or 0 for _, alias in _seen(few)) == 2
    assert max(alias or 0 for _, alias in _seen(many)) == 3
    assert {alias for _, alias in _seen(none)} == {None}


def test_aliases_end_with_the_connection() -> None:
    """What was in flight goes out again with its name [MQTT-3.3.2-7]."""
    house = House()
    properties = Properties(topic_alias_maximum=5, session_expiry_interval=60)
    sub = house.connect("sub", V5, properties=properties, silent=True).subscribe("#", qos=1)
    pub = house.connect("pub")
    for _ in range(2):
        pub.publish("topic", b"x", qos=1)
    sub.drop()

    again = house.connect("sub", V5, clean_start=False, properties=properties)

    assert _seen(again) == [("topic", 1), ("", 1)]


def test_a_message_that_is_too_large_teaches_no_alias() -> None:
    """The client never saw the name, so the next message has it."""
    house = House()
    sub = _aliased(house, 5, maximum_packet_size=100)

    house.connect("pub").publish("topic", bytes(200)).publish("topic", b"x")

    assert [topic for topic, _ in _seen(sub)] == ["topic"]


def test_response_information_is_told_to_who_asks() -> None:
    """And to nobody else [MQTT-3.1.2-28]."""
    house = House(settings=BrokerSettings(sys_interval_s=0, response_information="reply/${clientid}/"))

    asks = house.connect("one", V5, properties=Properties(request_response_information=1))
    does_not = house.connect("two", V5)
    cannot = house.connect("a/b", V5, properties=Properties(request_response_information=1))

    assert asks.connack.properties.response_information == "reply/one/"
    assert does_not.connack.properties.response_information is None
    assert cannot.connack.properties.response_information is None


class Guard:
    """Lets nobody publish, and says why."""

    text = "not on a Sunday"

    @hookimpl
    def authorize(self, request: AuthorizationRequest) -> Decision:
        return deny(text=self.text)


def _refused(properties: Properties = Properties(), version: int = V5, text: str = Guard.text) -> Peer:  # noqa: B008
    guard = Guard()
    guard.text = text
    house = House(plugins={"guard": guard})
    return house.connect("pub", version, properties=properties).publish("t", b"x", qos=1)


def test_a_refusal_says_why() -> None:
    """The reason string of a PUBACK (section 3.4.2.2.2)."""
    [puback] = _refused().of(Puback)

    assert (int(puback.reason), puback.properties.reason_string) == (0x87, "not on a Sunday")


@pytest.mark.parametrize(
    "properties", [Properties(request_problem_information=0), Properties(maximum_packet_size=20)]
)
def test_a_refusal_is_silent_where_it_must(properties: Properties) -> None:
    """The client does not want to know [MQTT-3.1.2-29], or the packet would be too large [MQTT-3.4.2-2]."""
    [puback] = _refused(properties).of(Puback)

    assert (int(puback.reason), puback.properties.reason_string) == (0x87, None)


def test_a_long_reason_is_cut() -> None:
    """At a whole character."""
    [puback] = _refused(text="é" * 200).of(Puback)

    assert puback.properties.reason_string == "é" * 50


def test_older_clients_are_not_told() -> None:
    """Their PUBACK has no room for it."""
    assert [packet.properties for packet in _refused(version=V311).of(Puback)] == [Properties()]
