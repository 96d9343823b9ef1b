"""A plugin for ``outbox.py``: its sink takes every message, and does nothing with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from kinmqtt_spi import hookimpl
from kinmqtt_spi.services.bridge import Item, Sink, SinkPlan
from kinmqtt_spi.services.plugin import Context


class NullSink(Sink):
    """Does nothing."""

    def send(self, items: Sequence[Item]) -> None:
        """Take all."""


class NullSinkPlugin:
    """One sink, for the topics of the load."""

    @hookimpl
    def sinks(self, context: Context) -> Mapping[str, SinkPlan]:
        """Return it."""
        return {"null": SinkPlan(NullSink(), ("bench/#",))}


PLUGIN: Final = NullSinkPlugin()
