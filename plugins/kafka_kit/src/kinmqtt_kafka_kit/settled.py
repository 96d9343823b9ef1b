"""Awaits answers of the broker in asyncio."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def settled(answer: Any) -> Any:
    """Return what the SPI calls ``Maybe``: a value, or what an asyncio future, a coroutine or a Deferred has."""
    if not isinstance(answer, Awaitable):
        return answer
    as_future = getattr(answer, "asFuture", None)
    return await (answer if as_future is None else as_future(asyncio.get_running_loop()))
