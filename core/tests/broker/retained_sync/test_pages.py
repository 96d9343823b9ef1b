"""What nodes send each other about retained messages, and what they refuse to read."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core_harness.strategies import plain_topics
from kinmqtt.broker.retained_sync import pages
from kinmqtt.broker.retained_sync.comparison import next_request
from kinmqtt.broker.retained_sync.index import VERSION
from kinmqtt.broker.retained_sync.pages import Entry, Section
from kinmqtt_spi.errors import MalformedBatch
from kinmqtt_spi.properties import Properties
from kinmqtt_spi.services.retain import RetainVersion
from kinmqtt_spi.values import Message, MessageId, Publisher

NOW = 1_700_000_000.0
V = RetainVersion(NOW, 7, 3)


def message(topic: str = "a/b", payload: bytes = b"x", age_s: float = 0.0, expiry_s: int | None = None) -> Message:
    properties = Properties(content_type="text")
    if expiry_s is not None:
        properties = properties.replace(message_expiry_interval=expiry_s)
    expires_at = None if expiry_s is None else NOW - age_s + expiry_s
    made = Message(topic, payload, 1, True, properties, Publisher("c", "u"))
    return made.received(MessageId(V.node, V.counter), NOW - age_s, expires_at)


def test_a_message_comes_over_whole() -> None:
    """Topic, payload, QoS, properties, publisher, id and version."""
    sent = message()

    [write] = pages.read_writes(pages.write_writes([pages.write_write(sent, sent.topic, V, NOW)]), NOW)

    assert (write.message, write.version) == (sent, V)


@pytest.mark.parametrize("age_s", [0.0, 3.5, 100 * 86_400.0])
def test_the_expiry_counts_from_where_the_message_was_received(age_s: float) -> None:
    """No clock is compared: the other node's is an hour behind. An age may be longer than the 49 days of 32 bits."""
    sent = message(age_s=age_s, expiry_s=200 * 86_400)

    page = pages.write_writes([pages.write_write(sent, sent.topic, V, NOW)])
    [write] = pages.read_writes(page, NOW - 3600)

    assert write.message.received_at == pytest.approx(NOW - 3600 - age_s, abs=0.01)
    assert write.message.expires_at == pytest.approx(NOW - 3600 - age_s + 200 * 86_400, abs=0.01)


def test_a_deletion_comes_over() -> None:
    """With the id that its version says."""
    [write] = pages.read_writes(pages.write_writes([pages.write_write(None, "a/b", V, NOW)]), NOW)

    assert (write.message.topic, write.message.payload, write.version) == ("a/b", b"", V)
    assert write.message.id == MessageId(V.node, V.counter)


@given(st.binary(max_size=60))
def test_other_bytes_are_malformed(data: bytes) -> None:
    """Nothing else is raised, whatever is read."""
    for read in (
        pages.read_root,
        pages.read_table,
        pages.read_request,
        pages.read_list,
        pages.read_topics,
        lambda data: pages.read_writes(data, NOW),
        lambda data: pages.read_answer(data, NOW),
    ):
        for each in (data, b"\1" + data):
            try:
                read(each)
            except MalformedBatch:
                pass


@pytest.mark.parametrize("seconds", [math.nan, math.inf, -1.0, 1e300])
def test_a_version_without_a_sensible_time_is_malformed(seconds: float) -> None:
    """It would win for ever, or break the order of versions."""
    page = b"\1" + VERSION.pack(seconds, 1, 1) + bytes(12) + b"\0\1a"

    with pytest.raises(MalformedBatch, match="version"):
        pages.read_writes(page, NOW)


def test_a_message_under_another_version_is_malformed() -> None:
    """A version has its message's id, so a mistake is found."""
    page = pages.write_writes([pages.write_write(message(), "a/b", RetainVersion(NOW, 7, 4), NOW)])

    with pytest.raises(MalformedBatch, match="id"):
        pages.read_writes(page, NOW)


@given(st.lists(plain_topics, unique=True, max_size=20))
def test_topics_come_over(topics: list[str]) -> None:
    """In their order."""
    assert pages.read_topics(pages.write_topics(topics)) == topics


def section(bucket: int, *topics: str, is_whole: bool = True) -> Section:
    return Section(bucket, is_whole, tuple(Entry(topic, V, False) for topic in topics))


@pytest.mark.parametrize(
    ("sections", "expected"),
    [
        ([section(1), section(2, "b")], ([3], "")),
        ([section(1), section(2, "b"), section(3)], ([], "")),
        ([section(1), section(2, "b", is_whole=False)], ([2, 3], "b")),
        ([section(1, "m", is_whole=False)], ([1, 2, 3], "m")),
    ],
)
def test_the_next_request_goes_on_where_a_list_ends(sections: list[Section], expected: tuple[list[int], str]) -> None:
    """No bucket is skipped or listed twice."""
    assert next_request([1, 2, 3], "l", sections) == expected


@pytest.mark.parametrize(
    "sections",
    [
        [],
        [section(2)],
        [section(1), section(3)],
        [section(1), section(2), section(3), section(4)],
        [section(1, "m", is_whole=False), section(2)],
        [section(1, "k")],
        [section(1, "m", "m")],
    ],
)
def test_a_list_that_does_not_go_on_is_malformed(sections: list[Section]) -> None:
    """Else an exchange would never end."""
    with pytest.raises(MalformedBatch):
        next_request([1, 2, 3], "l", sections)
