"""Services of plugins that live on asyncio."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kinmqtt.hooks.asyncio_services import on_asyncio


class Store:
    """A service as a plugin on asyncio would write it."""

    generation = 3

    async def read(self) -> str:
        async with asyncio.timeout(60):
            return await asyncio.get_running_loop().run_in_executor(None, lambda: "read")

    def count(self) -> int:
        return 5


@pytest.fixture
def loop() -> Any:
    """An asyncio loop for one test."""
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


def test_coroutines_run_as_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """A coroutine of the service may use what works in asyncio tasks only."""
    store = on_asyncio(Store())

    async def ask() -> Any:
        return await store.read().asFuture(loop)  # type: ignore[attr-defined]

    assert loop.run_until_complete(ask()) == "read"


def test_values_pass_through() -> None:
    """Attributes and plain answers are those of the service."""
    store = on_asyncio(Store())

    assert (store.generation, store.count(), store.count()) == (3, 5, 5)
