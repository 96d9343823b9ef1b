"""Adapts services whose coroutines need asyncio to callers that await Deferreds."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import iscoroutine
from typing import Any, TypeVar, cast

from kinmqtt.hooks.awaitables import as_deferred

S = TypeVar("S")


class _OnAsyncio:
    """Runs the coroutines that a service's methods return as asyncio tasks; everything else passes through."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._service, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **keywords: Any) -> Any:
            answer = attribute(*arguments, **keywords)
            return as_deferred(cast(Awaitable[Any], answer), on_asyncio=True) if iscoroutine(answer) else answer

        # The next call finds this function in the instance and skips __getattr__.
        self.__dict__[name] = call
        return call


def on_asyncio(service: S) -> S:
    """Wrap the service of a plugin that needs the asyncio reactor, so that the core can call it.

    A coroutine that awaits asyncio's futures or uses its timeouts must run as an asyncio task; a Twisted coroutine
    must not. The plugin's :class:`~kinmqtt_spi.services.plugin.Requirements` say which kind it uses.
    """
    return cast(S, _OnAsyncio(service))
