"""The feed of one node: the events of its own log."""

from __future__ import annotations

from kinmqtt_spi.services.event import Consumer, EventFeed, EventLog, Handler, Start, node_group


class LocalFeed(EventFeed):
    """Has the events of one log: those of this node's clients."""

    def __init__(self, log: EventLog, node: str) -> None:
        """``node`` is this node's name."""
        self._log = log
        self._node = node

    def consume(
        self, group: str, handler: Handler, start: Start = Start.OLDEST, *, each_node: bool = False
    ) -> Consumer:
        return self._log.consume(node_group(group, self._node) if each_node else group, handler, start)

    def lag(self, group: str) -> int:
        return self._log.lag(group)
