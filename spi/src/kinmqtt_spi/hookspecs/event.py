"""Event log and feed: client events, durable, ordered and replayable."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kinmqtt_spi.markers import Kind, hookspec

if TYPE_CHECKING:
    from kinmqtt_spi.services.event import EventFeed, EventLog
    from kinmqtt_spi.services.plugin import Context


@hookspec(Kind.PROVIDE, synchronous=True)
def event_log(context: Context) -> EventLog:  # type: ignore[empty-body]
    """The broker's event log.

    Called: once at assembly, after ``configure``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else `embedded`, or
        `memory` with `--data memory`.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous.
    """


@hookspec(Kind.PROVIDE, synchronous=True)
def event_feed(context: Context, log: EventLog) -> EventFeed:  # type: ignore[empty-body]
    """The feed from which plugins take events (``context.events``); ``log`` is this node's event log.

    Called: once at assembly, after ``configure`` and ``event_log``.
    Combines: exclusive: the plugin the settings name, else the only one installed, else `local_feed`.
    If it raises: the broker does not start and names the plugin.
    Threading: reactor thread, synchronous: connect in ``start``.
    """
