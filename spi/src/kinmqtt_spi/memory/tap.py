"""A tap in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kinmqtt_spi.services.tap import PayloadTest, Tap, TapHandler
from kinmqtt_spi.topics import check_filters, matches
from kinmqtt_spi.values import Message


class MemoryTap(Tap):
    """A tap of a :class:`~kinmqtt_spi.memory.plugin.BareContext`."""

    def __init__(
        self,
        filters: Sequence[str],
        call: TapHandler,
        closed: Callable[[MemoryTap], object],
        wants: PayloadTest | None = None,
    ) -> None:
        """``closed`` is called once. Raises ``ValueError`` for an invalid filter, a shared one, and for none."""
        if not filters:
            raise ValueError("a tap needs a topic filter")
        check_filters(filters)
        self.filters = tuple(filters)
        self._call = call
        self._wants = wants
        self._closed: Callable[[MemoryTap], object] | None = closed

    def see(self, message: Message) -> None:
        """Call the handler if a filter matches, and the payload is wanted."""
        topic = message.topic
        if topic.startswith("$SYS/") or not any(matches(filter, topic) for filter in self.filters):
            return
        if self._wants is None or self._wants(message.payload):
            self._call(message)

    def close(self) -> None:
        closed, self._closed = self._closed, None
        if closed is not None:
            closed(self)
