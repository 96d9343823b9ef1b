"""A source gets on with what the broker does not take together."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinmqtt_spi.bridging.singly import PAUSE_S, publish_all
from kinmqtt_spi.errors import NotCommitted, PublishRefused
from kinmqtt_spi.values import Message

BAD = "bad"


class Outbox:
    """Holds so many messages, takes those of a batch that fit, and loses one with each pause."""

    def __init__(self, room: int) -> None:
        self.room = room
        self.taken: list[str] = []
        self.held = 0
        self.skipped: list[str] = []
        self.pauses: list[float] = []

    async def publish(self, messages: Sequence[Message]) -> None:
        if any(each.topic == BAD for each in messages):
            raise ValueError("it is bad")
        fit = messages[: self.room - self.held]
        self.held += len(fit)
        self.taken += [each.topic for each in fit]
        if len(fit) < len(messages):
            raise PublishRefused("it is full")

    def skip(self, message: Message, error: ValueError) -> None:
        self.skipped.append(message.topic)

    async def wait(self, seconds: float) -> None:
        self.pauses.append(seconds)
        self.held -= 1


@given(st.integers(1, 5), st.lists(st.sampled_from(["a", "b", "c", BAD]), min_size=1, max_size=12))
def test_everything_is_published_in_its_order(room: int, topics: list[str]) -> None:
    """However little fits in; what is tried a second time may have come before."""
    outbox = Outbox(room)
    asyncio.run(publish_all(outbox.publish, [Message(topic) for topic in topics], outbox.skip, outbox.wait))

    good = [topic for topic in topics if topic != BAD]
    assert outbox.taken[len(outbox.taken) - len(good) :] == good
    assert len(outbox.taken) <= len(good) + room
    assert outbox.skipped == [BAD] * topics.count(BAD)
    assert set(outbox.pauses) <= {PAUSE_S}


def test_what_fits_is_published_at_once() -> None:
    """With one call."""
    calls: list[int] = []

    async def publish(messages: Sequence[Message]) -> None:
        calls.append(len(messages))

    asyncio.run(publish_all(publish, [Message("a")] * 3, lambda message, error: None))
    assert calls == [3]


def test_a_store_that_fails_is_the_sources_affair() -> None:
    """It acknowledges nothing, and is called again."""

    async def publish(messages: Sequence[Message]) -> None:
        raise NotCommitted("the store fails")

    with pytest.raises(NotCommitted):
        asyncio.run(publish_all(publish, [Message("a")] * 3, lambda message, error: None))
