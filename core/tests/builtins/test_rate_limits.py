"""The built-in limiter in a whole broker."""

from __future__ import annotations

from typing import Any

from core_harness.house import House
from kinmqtt.builtins.rate_limits import RateLimitSettings, RuleSettings
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Puback, Publish
from kinmqtt_spi.services.limiter import LimitVerdict, ResourceKind


def _house(*rules: RuleSettings) -> House:
    return House(plugin_settings={"rate_limits": RateLimitSettings(rules=rules)})


def test_without_rules_nothing_is_asked() -> None:
    """A broker without rules asks its limiter for nothing."""
    house = _house()

    assert not house.broker.limiting.publishes
    assert not house.broker.limiting.topics


def test_an_excess_is_refused_with_its_reason() -> None:
    """A rule that rejects answers the excess of QoS 1 messages with 0x97, and lets others pass."""
    house = _house(
        RuleSettings(name="slow", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=2, verdict=LimitVerdict.REJECT)
    )
    pub = house.connect("pub", V5)

    for _ in range(3):
        pub.publish("a", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0x10, 0x10, 0x97]


def test_tokens_come_back_with_time() -> None:
    """What the rule gives back in a second may be used again."""
    house = _house(
        RuleSettings(name="slow", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1, verdict=LimitVerdict.REJECT)
    )
    pub = house.connect("pub", V5).publish("a", b"x", qos=1)

    house.advance(1)
    pub.publish("a", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0x10, 0x10]


def test_a_read_passes_whole_while_there_is_a_token() -> None:
    """Of forty packets in one read none is refused, and the next ones are, until what was too much is paid back."""
    house = _house(RuleSettings(name="slow", kind=ResourceKind.PUBLISH, rate_per_s=10, verdict=LimitVerdict.REJECT))
    pub = house.connect("pub", V5).publish("a", b"x", qos=1)
    read = [Publish.build("a", b"x", qos=1, packet_id=number) for number in range(100, 140)]

    pub.send_bytes(b"".join(encode(packet, V5) for packet in read)).publish("a", b"x", qos=1)
    house.advance(3.2)
    pub.publish("a", b"x", qos=1)

    assert [int(p.reason) for p in pub.of(Puback)] == [0x10] * 41 + [0x97, 0x10]


def test_a_delayed_client_is_not_read_from() -> None:
    """A rule that delays lets the excess pass, and reads on when the credit is paid back."""
    house = _house(RuleSettings(name="slow", kind=ResourceKind.PUBLISH, rate_per_s=1, burst=1))
    pub = house.connect("pub", V5).publish("a", b"x", qos=1).publish("a", b"x", qos=1)

    link: Any = pub.link
    assert not link.reading

    house.advance(2)

    assert link.reading
    assert len(pub.of(Puback)) == 2
