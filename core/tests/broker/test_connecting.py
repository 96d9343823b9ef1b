"""CONNECT and CONNACK: packets sent before the answer, packet sizes, and refused clients."""

from __future__ import annotations

import pytest
from attrs import evolve

from core_harness.house import House
from core_harness.stores import SlowQueues
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import (
    V5,
    Connect,
    ConnectWill,
    Pingresp,
    Puback,
    Publish,
)
from kinmqtt_spi import Properties
from kinmqtt_spi.services.limiter import LimitVerdict, ResourceKind


def _connect(client_id: str) -> Connect:
    return Connect(
        version=V5, client_id=client_id, clean_start=True, keep_alive=0, will=None, username=None, password=None
    )


def test_a_packet_behind_connect_may_be_large() -> None:
    """A client that does not wait for its CONNACK may send what it may send later (section 3.1.4)."""
    house = House(max_connect_bytes=1024, max_packet_bytes=100_000)
    sub = house.connect("s").subscribe("t")
    pub = house.open(V5)

    pub.send_bytes(encode(_connect("p"), V5) + encode(Publish.build("t", bytes(50_000)), V5) + b"\xc0\x00")

    assert [len(payload) for _, payload, _ in sub.messages] == [50_000]
    assert pub.of(Pingresp)
    assert not pub.closed


def test_a_connect_that_is_too_large_is_refused_all_the_same() -> None:
    """And so is what comes behind a CONNECT that is refused."""
    house = House(max_connect_bytes=1024)
    large = house.open(V5).send_bytes(encode(Publish.build("t", bytes(5000)), V5))

    assert large.closed


@pytest.mark.parametrize("large", [1, 600])
def test_a_smaller_packet_size_than_before(large: int) -> None:
    """What no longer fits counts as sent, however much it is [MQTT-3.1.2-25]."""
    house = House()
    sub = house.connect("s", V5, expiry_s=60, silent=True).subscribe("t", qos=1)
    pub = house.connect("p")
    for _ in range(large):
        pub.publish("t", bytes(200), qos=1)
    pub.publish("t", b"small", qos=1)
    sub.drop()

    small = Properties(maximum_packet_size=100)
    again = house.connect("s", V5, clean_start=False, expiry_s=60, properties=small)

    assert [payload for _, payload, _ in again.messages] == [b"small"]


def test_a_connack_that_does_not_fit_ends_it() -> None:
    """Nothing else may come first [MQTT-3.2.0-1]."""
    house = House()
    house.connect("s", V5, expiry_s=60).subscribe("t", qos=1).drop()
    house.connect("p").publish("t", b"x", qos=1)

    peer = house.connect("s", V5, clean_start=False, expiry_s=60, properties=Properties(maximum_packet_size=10))

    assert peer.packets == []
    assert peer.closed


def test_packets_behind_connect_are_limited_too() -> None:
    """A client does not get around its limiter by not waiting for CONNACK."""
    rule = RuleSettings(name="r", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1, verdict=LimitVerdict.REJECT)
    house = House(plugin_settings={"rate_limits": RateLimitSettings(rules=(rule,))})
    peer = house.open(V5)
    packets = [Publish.build("t", b"x", qos=1, packet_id=n + 1) for n in range(5)]

    peer.send_bytes(encode(_connect("p"), V5) + b"".join(encode(packet, V5) for packet in packets))
    peer.publish("t", b"x", qos=1, packet_id=9)

    assert [int(p.reason) for p in peer.of(Puback)][-1] == 0x97


def test_a_client_that_was_refused_leaves_no_will() -> None:
    """Of two that come with one client id the first is refused (0x88) before its CONNACK: its will is not stored."""
    queues = SlowQueues()
    house = House(plugins={"queues": queues})
    sub = house.connect("s").subscribe("#")
    sessions = [house.open(V5), house.open(V5)]
    for number, peer in enumerate(sessions):
        properties = Properties(session_expiry_interval=60)
        connect = evolve(_connect("a"), will=ConnectWill(f"will/{number}", b"x"), properties=properties)
        peer.connection.receive(encode(connect, V5))
    house.settle()

    assert [int(peer.connack.reason) for peer in sessions] == [0x88, 0]
    assert sub.messages == []
