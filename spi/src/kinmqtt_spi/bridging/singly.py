"""Publishes the messages of a source one by one, where the broker does not take them together."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from kinmqtt_spi.errors import PublishRefused
from kinmqtt_spi.services.bridge import Publish
from kinmqtt_spi.values import Message

PAUSE_S: Final = 0.5
"""The time between two attempts with a message that a full queue or outbox refuses."""


async def publish_all(
    publish: Publish,
    messages: Sequence[Message],
    skip: Callable[[Message, ValueError], object],
    wait: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Publish messages in their order; for sources of asyncio.

    ``skip`` is called with each message that can't be published at all: which of a batch it is, ``publish`` does not
    say. What a full queue or outbox refuses is tried again until there is room: a batch may be more than it holds
    at any time, and would come again from its first message for ever. Raises
    :class:`~kinmqtt_spi.errors.NotCommitted`.
    """
    try:
        await publish(messages)
        return
    except (ValueError, PublishRefused):
        pass
    for message in messages:
        while True:
            try:
                await publish([message])
            except PublishRefused:
                await wait(PAUSE_S)
                continue
            except ValueError as error:
                skip(message, error)
            break
