"""Topic aliases towards a client, against a client that keeps a table of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kinmqtt.mqtt.aliases import OutgoingAliases

TOPICS = st.sampled_from([f"topic/{number}" for number in range(6)])


@given(st.integers(1, 4), st.lists(st.tuples(TOPICS, st.booleans())))
def test_the_client_always_knows_the_topic(maximum: int, uses: list[tuple[str, bool]]) -> None:
    """Whatever is sent, and whatever is not sent after all: a number stands for the topic meant [MQTT-3.1.2-26]."""
    aliases = OutgoingAliases(maximum)
    table: dict[int, str] = {}
    for topic, goes_out in uses:
        used = aliases.use(topic)
        assert used is not None
        name, number = used
        assert 1 <= number <= maximum
        if not goes_out:
            aliases.forget(topic)
            continue
        if name:
            table[number] = name
        assert table[number] == topic


def test_a_repeated_topic_is_sent_as_its_number() -> None:
    """The name goes out once."""
    aliases = OutgoingAliases(2)

    assert [aliases.use("topic") for _ in range(3)] == [("topic", 1), ("", 1), ("", 1)]


def test_the_topic_used_longest_ago_makes_way() -> None:
    """Topics in use keep their numbers."""
    aliases = OutgoingAliases(2)
    for topic in ("topic/1", "topic/2", "topic/1", "topic/3"):
        aliases.use(topic)

    assert aliases.use("topic/1") == ("", 1)
    assert aliases.use("topic/2") == ("topic/2", 2)


def test_a_short_topic_has_none() -> None:
    """The property would be longer."""
    assert OutgoingAliases(2).use("abcd") is None
