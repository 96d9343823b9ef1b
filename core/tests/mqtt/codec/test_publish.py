"""PUBLISH beyond the corpus."""

from __future__ import annotations

import pytest

from core_harness.corpus import ENTRIES
from kinmqtt.mqtt.codec import decode, decode_publish, encode, encode_publish, publish_parts
from kinmqtt.mqtt.codec import publish as module
from kinmqtt.mqtt.errors import LocalError
from kinmqtt.mqtt.packets import Publish
from kinmqtt_spi.properties import NO_PROPERTIES, Properties


def received(name: str, version: int) -> Publish:
    """A PUBLISH of the corpus, decoded."""
    entry = ENTRIES[name]
    return decode_publish(entry.data, entry.body, version)


def test_the_same_topic_is_the_same_string() -> None:
    """A topic that was seen before is not decoded again, and its look-ups are by identity."""
    first = received("publish-3-qos-0", 4)
    second = received("publish-5-qos-1", 5)

    assert first.topic == "a/b"
    assert first.topic is second.topic


def test_the_topic_cache_is_bounded() -> None:
    """Neither many topics nor long ones make the cache grow without end."""
    long = encode(Publish.build("x" * 300, b""), 4)
    decode_publish(long, 3, 4)

    for number in range(module._CACHED_TOPICS + 10):
        decode(encode(Publish.build(f"bound/{number}", b""), 4), 2, 4)

    assert 0 < len(module._topics) <= module._CACHED_TOPICS
    assert b"x" * 300 not in module._topics


def test_a_bad_topic_is_bad_every_time() -> None:
    """A topic that was refused is not remembered as a good one."""
    entry = ENTRIES["publish-topic-single-level-wildcard"]
    for _ in range(2):
        with pytest.raises(Exception, match="wildcard"):
            decode_publish(entry.data, entry.body, 4)


@pytest.mark.parametrize("qos", [0, 1, 2])
@pytest.mark.parametrize("version", [3, 4, 5])
def test_parts_surround_the_packet_identifier(version: int, qos: int) -> None:
    """One encoding serves all subscribers: head, Packet Identifier, tail."""
    message = Publish.build("a/b", b"hi", qos, packet_id=0x1234 if qos else 0)

    head, tail = publish_parts(message, version, qos, False, NO_PROPERTIES)

    assert head + (b"\x12\x34" if qos else b"") + tail == encode_publish(message, version)


def test_parts_may_differ_from_the_message() -> None:
    """QoS, RETAIN, DUP, properties and topic of an outgoing packet are given by the caller."""
    message = received("publish-5-qos-0-retain", 5)
    alias = Properties(topic_alias=3)

    head, tail = publish_parts(message, 5, 1, False, alias, topic="", dup=True)

    sent = decode(head + b"\x00\x09" + tail, 2, 5)
    assert sent == Publish.build("", b"hi", 1, False, True, 9, alias)


def test_old_versions_leave_out_properties() -> None:
    """A message with properties goes to an older client without them."""
    message = received("publish-5-all-properties", 5)

    assert encode(message, 4) == b"\x30\x07\x00\x03a/bhi"


@pytest.mark.parametrize(
    ("message", "version"),
    [
        (Publish.build("a/#", b""), 4),
        (Publish.build("+", b""), 5),
        (Publish.build("", b""), 5),
        (Publish.build("", b"", properties=Properties(topic_alias=1)), 4),
        (Publish.build("a", b"", 3, packet_id=1), 4),
        (Publish.build("a", b"", 1), 4),
        (Publish.build("a", b"", 1, packet_id=65_536), 4),
        (Publish.build("a", b"", 0, packet_id=1), 4),
        (Publish.build("a", b"", dup=True), 4),
        (Publish.build("a", b"", properties=Properties(topic_alias=0)), 5),
        (Publish.build("a", b"", properties=Properties(reason_string="x")), 5),
        (Publish.build("a" * 65_536, b""), 4),
    ],
)
def test_messages_that_cannot_be_sent(message: Publish, version: int) -> None:
    """A topic, QoS, DUP flag or Packet Identifier that MQTT forbids is a fault of ours."""
    with pytest.raises(LocalError):
        encode(message, version)
