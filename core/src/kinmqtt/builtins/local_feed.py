"""The feed of client events from this node's own log."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi import hookimpl
from kinmqtt_spi.memory.event_feed import LocalFeed

if TYPE_CHECKING:
    from kinmqtt_spi.services.event import EventFeed, EventLog
    from kinmqtt_spi.services.plugin import Context


@hookimpl
def event_feed(context: Context, log: EventLog) -> EventFeed:
    """Return a feed with the events of this node."""
    return LocalFeed(log, context.node.name)
