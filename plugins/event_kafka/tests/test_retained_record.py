"""A retained message comes back from its record as it was."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_event_kafka.rebuild import RetainedRebuilder
from kinmqtt_event_kafka.retained_record import decode, headers_of, key_of, topic_of
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.values import Message, MessageId, Publisher

TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8)
TIMES = st.floats(0, 1e11)
PROPERTIES = st.builds(
    Properties,
    content_type=TEXT,
    correlation_data=st.binary(max_size=8),
    message_expiry_interval=st.integers(0, 2**32 - 1),
    user_property=st.lists(st.tuples(TEXT, TEXT), max_size=3).map(tuple),
) | st.just(Properties())
MESSAGES = st.builds(
    Message,
    st.text(st.characters(codec="utf-8", exclude_characters="\0+#$"), min_size=1, max_size=8),
    st.binary(min_size=1, max_size=16),
    st.integers(0, 2),
    st.just(True),
    PROPERTIES,
    st.builds(Publisher, TEXT, st.none() | TEXT),
    st.builds(MessageId, st.integers(0, 2**63), st.integers(0, 2**63)),
    TIMES,
    st.none() | TIMES,
)
MESSAGE = Message("a/b", b"x", 1, True, id=MessageId(7, 1), received_at=1_700_000_000.25)


@given(MESSAGES)
def test_a_message_comes_back_exactly(message: Message) -> None:
    """With its properties, publisher, times and id; the version orders it as the broker's does."""
    write = decode(key_of(message.topic), message.payload, headers_of(message))

    assert write.message == message
    assert write.version == type(write.version)(message.received_at, *message.id)


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(name, data) for name, data in headers_of(MESSAGE) if name != "mqtt-id"],
        [*headers_of(MESSAGE), ("mqtt-qos", b"3")],
        [*headers_of(MESSAGE), ("mqtt-properties", b"{")],
        [*headers_of(MESSAGE), ("mqtt-properties", b'{"no_such": 1}')],
        [*headers_of(MESSAGE), ("mqtt-received-at", b"nan")],
        [*headers_of(MESSAGE), ("mqtt-client-id", b"\xff")],
        [*headers_of(MESSAGE), ("mqtt-client-id", None), ("mqtt-id", None)],
    ],
)
def test_a_record_of_somebody_else_is_refused(headers: list[tuple[str, bytes | None]]) -> None:
    """Whatever is in it."""
    with pytest.raises(ValueError, match=r"."):
        decode(b"a/b", b"x", headers)


@pytest.mark.parametrize("key", [None, b"", b"\xff", b"a/+", b"a/#", b"a\0", b"$SYS/x"])
def test_a_key_that_is_no_topic_is_refused(key: bytes | None) -> None:
    """A broker would refuse it, or take it for the topics of others."""
    with pytest.raises(ValueError, match=r"."):
        topic_of(key)


def test_of_each_topic_the_last_record_counts() -> None:
    """Doubles do no harm, a record without a value deletes, and what has expired is left out."""
    rebuilder = RetainedRebuilder()
    newer = Message("a/b", b"y", 0, True, id=MessageId(7, 2), received_at=1_700_000_001.0, expires_at=1_700_000_009.0)
    for each in (MESSAGE, newer, MESSAGE, newer):
        rebuilder.take(b"a/b", each.payload, headers_of(each))
    rebuilder.take(b"gone", b"x", headers_of(MESSAGE))
    rebuilder.take(b"gone", None, [])

    assert [write.message for write in rebuilder.writes(1_700_000_008.0)] == [newer]
    assert list(rebuilder.writes(1_700_000_009.0)) == []
