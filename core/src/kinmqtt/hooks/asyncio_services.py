"""Services whose coroutines are asyncio's, for callers that await as Twisted does."""

from __future__ import annotations

from collections.abc import Awaitable
from inspect import iscoroutine
from typing import Any, TypeVar, cast

from kinmqtt.hooks.awaitables import as_deferred

S = TypeVar("S")


class _OnAsyncio:
    """Runs the coroutines that a service's methods answer as asyncio tasks; everything else passes through."""

    def __init__(self, service: Any) -> None:
        self._service = service

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._service, name)
        if not callable(attribute):
            return attribute

        def call(*arguments: Any, **keywords: Any) -> Any:
            answer = attribute(*arguments, **keywords)
            return as_deferred(cast(Awaitable[Any], answer), on_asyncio=True) if iscoroutine(answer) else answer

        # The next call finds it without asking here.
        self.__dict__[name] = call
        return call


def on_asyncio(service: S) -> S:
    """The service of a plugin that needs the asyncio reactor, as the core may call it.

    A coroutine that awaits asyncio's futures (or uses its time limits) must run as a task; one of Twisted's must not.
    Which sort a plugin writes is in its :class:`~kinmqtt_spi.services.plugin.Requirements`.
    """
    return cast(S, _OnAsyncio(service))
