"""Templates say at once what is wrong with them, and never lead a message where it must not go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_bridge_kafka.templates import (
    Incoming,
    MqttTopic,
    is_unfit,
    kafka_topic,
    key_maker,
    of_message,
)
from kinmqtt_kafka_kit import is_topic_name
from kinmqtt_spi.values import Message, Publisher

LEVELS = st.text(st.characters(codec="utf-8", exclude_characters="/+#\0"), max_size=8)
TOPICS = st.lists(LEVELS, min_size=1, max_size=6).map("/".join).filter(bool)
NAMES = st.none() | st.text(st.characters(codec="utf-8"), max_size=8)
MESSAGES = st.builds(
    Message,
    TOPICS,
    publisher=st.builds(Publisher, st.text(st.characters(codec="utf-8"), max_size=8), NAMES),
)
PLACEHOLDERS = st.sampled_from(
    ["${topic}", "${clientid}", "${username}", *(f"${{topic[{n}]}}" for n in (-7, -2, -1, 1, 2, 3, 7))]
)
LITERALS = st.text(st.characters(codec="utf-8", exclude_characters="$"), max_size=5)
TEMPLATES = st.lists(PLACEHOLDERS | LITERALS, max_size=6).map("".join)
RECORDS = st.builds(
    Incoming,
    st.from_regex(r"[A-Za-z0-9._-]{1,9}", fullmatch=True),
    st.none() | st.binary(max_size=9) | TOPICS.map(str.encode),
    st.dictionaries(st.just("h"), st.binary(max_size=9) | LEVELS.map(str.encode)),
)
RECORD_TEMPLATES = st.lists(
    st.sampled_from(["${topic}", "${key}", "${header.h}", "a/", "b", "/"]), min_size=1, max_size=5
).map("".join)


def message(topic: str, client: str = "ada", user: str | None = "user") -> Message:
    """A message from a client."""
    return Message(topic, publisher=Publisher(client, user))


@pytest.mark.parametrize(
    ("template", "topic", "expected"),
    [
        ("mqtt.${topic[1]}", "a/b/c", "mqtt.a"),
        ("${topic[-1]}", "a/b/c", "c"),
        ("${topic[3]}${topic[-3]}", "a/b/c", "ca"),
        ("${topic[4]}", "a/b/c", None),
        ("${topic[-4]}", "a/b/c", None),
        ("${topic[2]}", "a//c", None),
        ("${topic}", "a/b", "a/b"),
        ("${clientid}-${username}", "a", "ada-user"),
        ("plain", "a", "plain"),
        ("100 $", "a", "100 $"),
        ("", "a", ""),
    ],
)
def test_a_template_is_filled_in(template: str, topic: str, expected: str | None) -> None:
    """Levels count from 1, and from the end."""
    assert of_message(template).fill_in(message(topic)) == expected


@pytest.mark.parametrize(
    ("template", "problem"),
    [
        ("${topics}", r"unknown placeholder \$\{topics\}; did you mean 'topic'\?; use \$\{topic\}, \$\{topic\[N\]\}"),
        ("${topic[0]}", r"unknown placeholder \$\{topic\[0\]\}"),
        ("${topic[x]}", r"unknown placeholder"),
        ("a${", "no closing brace"),
        ("a${topic", "no closing brace"),
        ("${payload}", "unknown placeholder"),
    ],
)
def test_a_mistake_is_named(template: str, problem: str) -> None:
    """At the start, not with the first message."""
    with pytest.raises(ValueError, match=problem):
        of_message(template)


@given(TEMPLATES, MESSAGES)
def test_what_has_all_its_parts_is_the_same_either_way(template: str, message: Message) -> None:
    """A key leaves out what is missing, a topic is then none."""
    made = of_message(template)

    filled, present = made.fill_in(message), made.fill_in_present(message)

    assert filled in (None, present)
    assert key_maker(template)(message) == present.encode()
    assert made.is_constant == ("${" not in template)


def test_a_kafka_topic_has_dots_for_slashes() -> None:
    """Kafka's names have no slash."""
    assert kafka_topic("mqtt.${topic}").fill_in(message("a/b/c")) == "mqtt.a.b.c"


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
    assert MqttTopic(template).fill_in(Incoming("records", key, {"to": b"there/x"})) == topic


@pytest.mark.parametrize("template", ["", "a/#", "+/${key}", "$SYS/${key}", "a\0", "${clientid}", "${header.}"])
def test_a_template_that_never_makes_a_topic_is_refused(template: str) -> None:
    """Nothing would ever be published."""
    with pytest.raises(ValueError):
        MqttTopic(template)


@given(RECORD_TEMPLATES, RECORDS)
def test_no_record_makes_an_invalid_topic(template: str, record: Incoming) -> None:
    """Nor does it add levels to those of the template, unless it is the whole of it."""
    topic = MqttTopic(template).fill_in(record)

    if topic is not None:
        assert topic and not is_unfit(topic)
        if template not in ("${key}", "${header.h}"):
            assert topic.count("/") == template.count("/")
