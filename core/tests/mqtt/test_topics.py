"""Topic Names, Topic Filters and matching."""

from __future__ import annotations

import pytest
from hypothesis import given

from core_harness.strategies import filters, plain_topics
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.topics import check_topic_filter, check_topic_name, split_shared
from kinmqtt_spi.topics import matches


@pytest.mark.parametrize("topic", ["a", "/", "//", "a/b", " ", "$SYS/x", "\ufeff", "a" * 65_535, "é" * 32_767])
def test_topic_names(topic: str) -> None:
    """1 to 65535 bytes without wildcards and U+0000 name a topic (MQTT-4.7.3-1 to MQTT-4.7.3-3)."""
    check_topic_name(topic)


@pytest.mark.parametrize(
    ("topic", "clause"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a/+", "MQTT-3.3.2-2"),
        ("a#", "MQTT-3.3.2-2"),
        ("a\0", "MQTT-4.7.3-2"),
        ("a" * 65_536, "MQTT-4.7.3-3"),
        ("é" * 32_768, "MQTT-4.7.3-3"),
    ],
)
def test_bad_topic_names(topic: str, clause: str) -> None:
    """What is no Topic Name is refused with 0x90 and the clause."""
    with pytest.raises(RemoteError) as caught:
        check_topic_name(topic)

    assert (caught.value.reason, caught.value.clause) == (0x90, clause)


@pytest.mark.parametrize(
    "filter", ["#", "+", "a", "/", "a/#", "+/#", "+/+", "/+", "a/+/b", "$SYS/#", "a//#", "$share"]
)
def test_topic_filters(filter: str) -> None:
    """A wildcard takes a whole level, and # the last one (MQTT-4.7.1-1, MQTT-4.7.1-2)."""
    check_topic_filter(filter)


@pytest.mark.parametrize(
    ("filter", "clause"),
    [
        ("", "MQTT-4.7.3-1"),
        ("a\0b", "MQTT-4.7.3-2"),
        ("a" * 65_536, "MQTT-4.7.3-3"),
        ("a#", "MQTT-4.7.1-1"),
        ("#/a", "MQTT-4.7.1-1"),
        ("a/#/b", "MQTT-4.7.1-1"),
        ("a/##", "MQTT-4.7.1-1"),
        ("#/", "MQTT-4.7.1-1"),
        ("+#", "MQTT-4.7.1-1"),
        ("a+", "MQTT-4.7.1-2"),
        ("++", "MQTT-4.7.1-2"),
        ("a/+b/c", "MQTT-4.7.1-2"),
    ],
)
def test_bad_topic_filters(filter: str, clause: str) -> None:
    """What is no Topic Filter is refused with 0x8F and the clause."""
    with pytest.raises(RemoteError) as caught:
        check_topic_filter(filter)

    assert (caught.value.reason, caught.value.clause) == (0x8F, clause)


def test_levels_may_be_limited() -> None:
    """The levels of names and filters may be limited; the prefix of a Shared Subscription does not count."""
    check_topic_name("a/b/c", max_levels=3)
    split_shared("$share/g/a/b/c", max_levels=3)

    with pytest.raises(RemoteError, match="3 levels"):
        check_topic_name("a/b/c/d", max_levels=3)
    with pytest.raises(RemoteError, match="3 levels"):
        check_topic_filter("a/b/c/#", max_levels=3)
    with pytest.raises(RemoteError, match="3 levels"):
        split_shared("$share/g/a/b/c/d", max_levels=3)


@pytest.mark.parametrize(
    ("filter", "parts"),
    [
        ("a/#", (None, "a/#")),
        ("$share", (None, "$share")),
        ("$shared/g/a", (None, "$shared/g/a")),
        ("$share/g/a", ("g", "a")),
        ("$share/g/a/#", ("g", "a/#")),
        ("$share/g//", ("g", "/")),
        ("$share/ /+", (" ", "+")),
        ("$share/g/$share/h/a", ("g", "$share/h/a")),
    ],
)
def test_shared_subscriptions_are_split(filter: str, parts: tuple[str | None, str]) -> None:
    """$share/{ShareName}/{filter} comes apart, anything else stays whole (MQTT-4.8.2-1)."""
    assert split_shared(filter) == parts


@pytest.mark.parametrize(
    ("filter", "clause"),
    [
        ("$share/", "MQTT-4.8.2-1"),
        ("$share//a", "MQTT-4.8.2-1"),
        ("$share/g", "MQTT-4.8.2-2"),
        ("$share/g/", "MQTT-4.8.2-2"),
        ("$share/+/a", "MQTT-4.8.2-2"),
        ("$share/g#/a", "MQTT-4.8.2-2"),
        ("$share/#", "MQTT-4.8.2-2"),
        ("$share/g\0/a", "MQTT-4.7.3-2"),
        ("$share/g/a#", "MQTT-4.7.1-1"),
        ("a+", "MQTT-4.7.1-2"),
    ],
)
def test_bad_shared_subscriptions(filter: str, clause: str) -> None:
    """A Shared Subscription needs a ShareName without wildcards, a slash and a valid filter."""
    with pytest.raises(RemoteError) as caught:
        split_shared(filter)

    assert (caught.value.reason, caught.value.clause) == (0x8F, clause)


@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("a", "a"), ("a/b", "a/b"), ("/", "/"), ("#", "a"), ("#", "/"), ("#", "a/b/c"), ("a/#", "a"),
        ("a/#", "a/"), ("a/#", "a/b/c"), ("+", "a"),
        ("+/+", "/a"), ("/+", "/a"), ("+/", "a/"), ("a/+/c", "a//c"),
        ("a/+/#", "a/b"), ("+/#", "a"), ("/#", "/"), ("$SYS/#", "$SYS/x"), ("$SYS/+", "$SYS/x"),
        ("$SYS/#", "$SYS"),
        ("a/#", "a/$x"), ("a/+", "a/$x"),
    ],
)  # fmt: skip
def test_filters_that_match(filter: str, topic: str) -> None:
    """Levels are compared one by one, wildcards stand for levels (section 4.7)."""
    assert matches(filter, topic)


@pytest.mark.parametrize(
    ("filter", "topic"),
    [
        ("a", "A"), ("a", "/a"), ("a", "a/"), ("a/b", "a"), ("a", "a/b"), ("+", "/a"), ("+", "a/b"),
        ("a/+", "a"),
        ("a/+", "a/b/c"), ("a/+/#", "a"), ("a/b/#", "a"), ("/#", "a"), ("#", "$SYS"), ("#", "$SYS/x"),
        ("+", "$SYS"),
        ("+/x", "$SYS/x"), ("+/#", "$SYS/x"), ("e\u0301", "é"),
    ],
)  # fmt: skip
def test_filters_that_do_not_match(filter: str, topic: str) -> None:
    """Nothing is normalized, and a leading wildcard leaves $ alone (MQTT-4.7.2-1, MQTT-4.7.3-4)."""
    assert not matches(filter, topic)


@given(filters(), plain_topics)
def test_matching_agrees_with_a_regular_expression(filter: str, topic: str) -> None:
    """The level-by-level matcher and the same rules as a regular expression give one answer."""
    import re

    pattern = re.escape(filter).replace(r"\+", "[^/]*")
    pattern = re.sub(r"(^|/)\\#$", lambda found: "(/.*)?" if found[1] else ".*", pattern)
    expected = re.fullmatch(pattern, topic, re.DOTALL) is not None
    if topic.startswith("$") and filter[0] in "+#":
        expected = False

    check_topic_filter(filter)
    assert matches(filter, topic) is expected
