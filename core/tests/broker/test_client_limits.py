"""Bounds on what one client may send, hold and make the broker remember."""

from __future__ import annotations

import pytest

from core_harness.house import House
from kinmqtt.broker.routing.fanouts import CACHED_TARGETS
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    V31,
    V311,
    ConnectWill,
    DisconnectPacket,
    Publish,
    Pubrel,
    Subscribe,
    SubscribeRequest,
    Unsubscribe,
)
from kinmqtt_spi import NO_PROPERTIES, Properties, Subscription, hookimpl
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import LimitVerdict, ResourceKind


def test_topics_of_wills_and_initial_subscriptions_are_limited_too() -> None:
    """The limit of topic levels holds for wills and for what plugins subscribe."""

    class Deep:
        @hookimpl
        def initial_subscriptions(self) -> list[Subscription]:
            return [Subscription("a/b/c/d")]

    house = House(plugins={"deep": Deep()}, max_topic_levels=3)

    refused = house.connect("w", V5, will=ConnectWill("a/b/c/d", b"", 0, False, NO_PROPERTIES))
    house.connect("c")

    assert refused.connack.reason is ReasonCode.TOPIC_NAME_INVALID
    assert house.broker.router.index.count() == 0


@pytest.mark.parametrize("packet", ["subscribe", "unsubscribe"])
@pytest.mark.parametrize(("filters", "closed"), [(10, False), (11, True)])
def test_filters_in_one_packet_are_bounded(packet: str, filters: int, closed: bool) -> None:
    """A packet of millions must not hold up everybody else: 0x97."""
    house = House(max_filters=10)
    peer = house.connect("a", V5)

    if packet == "subscribe":
        peer.send(Subscribe(1, tuple(SubscribeRequest("a", 0) for _ in range(filters))))
    else:
        peer.send(Unsubscribe(1, tuple("a" for _ in range(filters))))

    assert peer.closed is closed
    assert [int(p.reason) for p in peer.of(DisconnectPacket)] == ([0x97] if closed else [])


def test_properties_are_bounded() -> None:
    """Millions of user properties neither: 0x95, for so many are too many bytes."""
    house = House()
    peer = house.connect("a", V5)

    peer.publish("t", b"", properties=Properties(user_property=(("", ""),) * 150_000))

    assert [int(p.reason) for p in peer.of(DisconnectPacket)] == [0x95]


def test_retained_messages_are_not_sent_beyond_the_buffer() -> None:
    """However many filters of a packet ask for them, who takes nothing is sent little more than may wait."""
    house = House(outbound_buffer_bytes=1 << 20)
    pub = house.connect("p")
    for number in range(100):
        pub.publish(f"t/{number}", bytes(10_000), retain=True)
    sub = house.connect("s")
    sub.link.blocked = True

    sub.send(Subscribe(1, tuple(SubscribeRequest("#", 0) for _ in range(50))))
    waiting = sub.connection.waiting_bytes + len(sub.link.written)
    sub.unblock()

    assert waiting < 2 << 20
    assert len(sub.messages) == 50 * 100


def test_who_takes_nothing_is_not_waited_for() -> None:
    """A full buffer is kept for so long and no longer."""
    house = House(outbound_buffer_bytes=1024, outbound_time_limit_s=30)
    sub = house.connect("s", V5).subscribe("t")
    sub.link.blocked = True
    for _ in range(3):
        house.connect("p").publish("t", bytes(2000))

    house.advance(29)
    before = sub.closed
    house.advance(2)

    assert (before, sub.closed) == (False, True)


def test_what_is_remembered_of_topics_is_bounded() -> None:
    """By their subscribers, not only by their number."""
    house = House()
    for number in range(300):
        house.connect(f"c{number}").subscribe("#")
    router = house.broker.router

    for number in range(1500):
        router.fanout(f"t/{number}")

    assert sum(len(fanout.targets) for fanout in router.fanouts.cached.values()) <= CACHED_TARGETS


@pytest.mark.parametrize("behind", [b"\xc0\x00\x00\x00", b"\x00\x00"])
def test_over_a_limit_malformed_bytes_are_malformed(behind: bytes) -> None:
    """What is behind packets that a limiter drops is judged as ever."""
    rule = RuleSettings(name="r", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1, verdict=LimitVerdict.DROP)
    house = House(plugin_settings={"rate_limits": RateLimitSettings(rules=(rule,))})
    peer = house.connect("p", V5)
    packets = b"".join(encode(Publish.build("t", b"x"), V5) for _ in range(3))

    peer.send_bytes(packets + behind)

    assert peer.closed


def test_old_identifiers_do_not_widen_the_window() -> None:
    """PUBRELs for messages of an earlier connection are answered, and counted no more than once (section 4.9)."""
    house = House(receive_maximum=4)
    pub = house.connect("p", V5, expiry_s=60, silent=True)
    for packet_id in range(1, 5):
        pub.publish("t", b"x", qos=2, packet_id=packet_id)
    pub.drop()
    again = house.connect("p", V5, clean_start=False, expiry_s=60, silent=True)

    for packet_id in range(1, 5):
        again.send(Pubrel(packet_id))

    assert again.connection.unacknowledged == 0


@pytest.mark.parametrize("version", [V31, V311, V5])
def test_a_topic_length_beyond_the_packet_is_malformed_though_the_topic_is_known(version: int) -> None:
    """What is forwarded as it came must be whole: nobody is sent bytes that no parser takes [MQTT-3.3.2-1]."""
    house = House()
    sub = house.connect("sub", version).subscribe("a/b")
    pub = house.connect("pub", version).publish("a/b", b"1").publish("a/b", b"2")

    pub.send_bytes(b"\x30\x05\xff\xffa/b")

    assert pub.closed
    assert [payload for _, payload, _ in sub.messages] == [b"1", b"2"]
