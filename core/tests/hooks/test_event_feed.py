"""A plugin's view of the feed: what it awaits, and what its handlers return, are of its own kind."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any

import pytest
from twisted.internet.defer import Deferred, succeed

from kinmqtt.hooks.event_feed import PluginFeed
from kinmqtt_spi.services.event import Consumer, EventFeed, Recorded, Start
from kinmqtt_spi.testing.build import event

BATCH = [Recorded(0, event())]


class Feed(EventFeed):
    """Hands the handler out, and answers what it is told."""

    def __init__(self, answer: Any = None) -> None:
        self.answer = answer
        self.handler: Any = None
        self.asked: tuple[Any, ...] = ()

    def consume(self, group: str, handler: Any, start: Start = Start.OLDEST, *, each_node: bool = False) -> Consumer:
        self.handler = handler
        self.asked = (group, start, each_node)
        feed = self

        class Running(Consumer):
            def stop(self) -> Any:
                return feed.answer

        return Running()

    def lag(self, group: str) -> Any:
        return self.answer


def test_what_is_asked_for_comes_to_the_feed() -> None:
    """Group, start and nodes."""
    feed = Feed()

    PluginFeed(feed, False).consume("g", lambda batch: None, Start.NEWEST, each_node=True)

    assert feed.asked == ("g", Start.NEWEST, True)
    assert feed.handler(BATCH) is None


def test_a_twisted_handler_becomes_a_deferred() -> None:
    """Whatever the feed is made of."""
    feed = Feed()
    gate: Deferred[None] = Deferred()
    done: list[str] = []

    async def handle(batch: Sequence[Recorded]) -> None:
        await gate
        done.append(batch[0].event.client_id)

    PluginFeed(feed, False).consume("g", handle)
    answer = feed.handler(BATCH)
    assert isinstance(answer, Deferred)
    assert not done
    gate.callback(None)

    assert done == ["client"]


def test_an_asyncio_handler_becomes_a_deferred_too() -> None:
    """It runs as a task of its event loop."""

    async def main() -> list[str]:
        feed = Feed()
        done: list[str] = []

        async def handle(batch: Sequence[Recorded]) -> None:
            await asyncio.sleep(0)
            done.append(batch[0].event.client_id)

        PluginFeed(feed, True).consume("g", handle)
        answer = feed.handler(BATCH)
        assert isinstance(answer, Deferred)
        await answer.asFuture(asyncio.get_running_loop())
        return done

    assert asyncio.run(main()) == ["client"]


@pytest.mark.parametrize("answer", [None, 3])
def test_an_answer_that_is_there_is_passed_on(answer: Any) -> None:
    """Of `lag`, and of a consumer's `stop`."""
    feed = PluginFeed(Feed(answer), True)

    assert feed.lag("g") == answer
    assert feed.consume("g", lambda batch: None).stop() == answer


def test_answers_are_of_the_plugins_kind() -> None:
    """A Deferred for one, a future for the other."""

    async def main() -> None:
        twisted, on_asyncio = PluginFeed(Feed(succeed(3)), False), PluginFeed(Feed(succeed(3)), True)

        assert isinstance(twisted.lag("g"), Deferred)
        lag = on_asyncio.lag("g")
        assert isinstance(lag, Awaitable)
        assert await lag == 3

    asyncio.run(main())
