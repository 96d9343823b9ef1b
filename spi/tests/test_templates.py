"""Templates say at once what is wrong with them, and never lead a message where it must not go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi import Client
from kinmqtt_spi.templates import MAX_TOPIC_BYTES, Part, TopicTemplate, fill_in, is_unfit, key_maker, of_message
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
VALUES = st.none() | TOPICS | LEVELS


def message(topic: str, client: str = "ada", user: str | None = "user") -> Message:
    """A message from a client."""
    return Message(topic, publisher=Publisher(client, user))


@pytest.mark.parametrize(
    ("template", "client", "filled"),
    [
        ("a/${clientid}", Client("x"), "a/x"),
        ("a/${username}", Client("x", "u"), "a/u"),
        ("a/${username}", Client("x"), None),
        ("a/${clientid}", Client("x/y"), None),
        ("a/${clientid}", Client("#"), None),
        ("a/${clientid}", Client("+"), None),
        ("a/${clientid}/${username}", Client("${username}", "u"), "a/${username}/u"),
        ("plain", Client("#"), "plain"),
        ("${clientid}/a", Client("$SYS"), None),
        ("${clientid}", Client("$share"), None),
        ("${username}${clientid}/a", Client("x", "$"), None),
        ("a/${clientid}", Client("$SYS"), "a/$SYS"),
        ("a${clientid}", Client("$SYS"), "a$SYS"),
        ("$SYS/${clientid}", Client("$x"), "$SYS/$x"),
        ("${other}/${clientid}", Client("x"), "${other}/x"),
    ],
)
def test_a_name_is_one_level_or_none(template: str, client: Client, filled: str | None) -> None:
    """A client must not subscribe to more than its own by the choice of its name, nor to topics of the broker's."""
    assert fill_in(template, client) == filled


def test_a_name_may_begin_with_a_dollar_within_a_topic() -> None:
    """What stands behind something else is no beginning."""
    assert fill_in("${clientid}/a", Client("$SYS"), begins=False) == "$SYS/a"


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


def _find_key(name: str) -> Part[str | None] | None:
    return (lambda key: key) if name == "key" else None


@pytest.mark.parametrize(
    ("template", "key", "topic"),
    [
        ("devices/${key}/do", "lamp", "devices/lamp/do"),
        ("devices/${key}/do", "a/b", None),
        ("devices/${key}/do", "+", None),
        ("devices/${key}/do", "", "devices//do"),
        ("devices/${key}/do", None, None),
        ("${key}", "a/b", "a/b"),
        ("${key}", "$SYS/a", None),
        ("${key}", "a/#", None),
        ("${key}", "", None),
        ("${key}", "x" * MAX_TOPIC_BYTES, "x" * MAX_TOPIC_BYTES),
        ("${key}", "ä" * MAX_TOPIC_BYTES, None),
    ],
)
def test_a_value_makes_a_topic_or_none(template: str, key: str | None, topic: str | None) -> None:
    """A value with a slash only where it is the whole topic."""
    assert TopicTemplate(template, _find_key, "${key}").fill_in(key) == topic


@pytest.mark.parametrize("template", ["", "a/#", "+/${key}", "$SYS/${key}", "a\0", "${clientid}"])
def test_a_template_that_never_makes_a_topic_is_refused(template: str) -> None:
    """Nothing would ever be published."""
    with pytest.raises(ValueError):
        TopicTemplate(template, _find_key, "${key}")


@given(st.lists(st.sampled_from(["${key}", "a/", "b", "/"]), min_size=1, max_size=5).map("".join), VALUES)
def test_no_value_makes_an_invalid_topic(template: str, key: str | None) -> None:
    """Nor does it add levels to those of the template, unless it is the whole of it."""
    topic = TopicTemplate(template, _find_key, "${key}").fill_in(key)

    if topic is not None:
        assert topic and not is_unfit(topic)
        assert template == "${key}" or topic.count("/") == template.count("/")
