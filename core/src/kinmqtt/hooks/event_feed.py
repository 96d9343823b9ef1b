"""The feed of events as one plugin sees it: handlers and answers of the kind that the plugin awaits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from typing import TypeVar, cast

from kinmqtt.hooks.awaitables import as_deferred, is_pending
from kinmqtt_spi.services.event import Consumer, EventFeed, Handler, Recorded, Start
from kinmqtt_spi.values import Maybe

T = TypeVar("T")


class PluginFeed(EventFeed):
    """Passes Deferreds between a feed and a plugin, and asyncio futures to a plugin that uses asyncio."""

    def __init__(self, feed: EventFeed, on_asyncio: bool) -> None:
        """``on_asyncio`` says that the plugin's coroutines are asyncio's."""
        self._feed = feed
        self._on_asyncio = on_asyncio

    def consume(
        self, group: str, handler: Handler, start: Start = Start.OLDEST, *, each_node: bool = False
    ) -> Consumer:
        def handle(batch: Sequence[Recorded]) -> Maybe[None]:
            answer = handler(batch)
            if not is_pending(answer):
                return None
            return as_deferred(cast("Awaitable[None]", answer), on_asyncio=self._on_asyncio)

        consumer = self._feed.consume(group, handle, start, each_node=each_node)
        return _PluginConsumer(consumer, self._on_asyncio)

    def lag(self, group: str) -> Maybe[int]:
        return _for_plugin(self._feed.lag(group), self._on_asyncio)


class _PluginConsumer(Consumer):
    def __init__(self, consumer: Consumer, on_asyncio: bool) -> None:
        self._consumer = consumer
        self._on_asyncio = on_asyncio

    def stop(self) -> Maybe[None]:
        return _for_plugin(self._consumer.stop(), self._on_asyncio)


def _for_plugin(answer: Maybe[T], on_asyncio: bool) -> Maybe[T]:
    if not is_pending(answer):
        return answer
    deferred = as_deferred(cast("Awaitable[T]", answer))
    if not on_asyncio:
        return deferred
    return cast("Awaitable[T]", deferred.asFuture(asyncio.get_running_loop()))
