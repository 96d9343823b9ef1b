"""Templates say at once what is wrong with them, and never lead a message where it must not go."""

from __future__ import annotations

import pytest

from kinmqtt_bridge_kafka.templates import Incoming, kafka_topic, mqtt_topic
from kinmqtt_kafka_kit import is_topic_name
from kinmqtt_spi.values import Message


def test_a_kafka_topic_has_dots_for_slashes() -> None:
    """Kafka's names have no slash."""
    assert kafka_topic("mqtt.${topic}").fill_in(Message("a/b/c")) == "mqtt.a.b.c"


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a/b", "ä", "x" * 250])
def test_an_impossible_kafka_topic_is_refused(name: str) -> None:
    """Kafka would refuse each message."""
    assert not is_topic_name(name)
    with pytest.raises(ValueError, match="can't be the name of a Kafka topic"):
        kafka_topic(name)


@pytest.mark.parametrize(
    ("template", "key", "topic"),
    [
        ("devices/${key}/do", b"lamp", "devices/lamp/do"),
        ("devices/${key}/do", b"a/b", None),
        ("devices/${key}/do", b"+", None),
        ("devices/${key}/do", b"", None),
        ("devices/${key}/do", None, None),
        ("devices/${key}/do", b"\xff", None),
        ("${key}", b"a/b", "a/b"),
        ("${key}", b"$SYS/a", None),
        ("${key}", b"a/#", None),
        ("${topic}/x", None, "records/x"),
        ("${header.to}", None, "there/x"),
        ("a/${header.to}", None, None),
        ("a/${header.none}", None, None),
    ],
)
def test_a_record_makes_a_topic_or_none(template: str, key: bytes | None, topic: str | None) -> None:
    """A key with a slash only where it is the whole topic."""
    assert mqtt_topic(template).fill_in(Incoming("records", key, {"to": b"there/x"})) == topic


@pytest.mark.parametrize("template", ["", "a/#", "+/${key}", "$SYS/${key}", "a\0", "${clientid}", "${header.}"])
def test_a_template_that_never_makes_a_topic_is_refused(template: str) -> None:
    """Nothing would ever be published."""
    with pytest.raises(ValueError):
        mqtt_topic(template)
