"""Acknowledgements that wait for other nodes, and those behind them: they are sent in order (MQTT-4.6.0-2)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kinmqtt.broker.message.ticket import Ticket

Acknowledge = Callable[[], object]
"""Acknowledges a message, with the writes of the current turn."""


class HeldAcknowledgements:
    """The acknowledgements of one connection that are not sent yet, in the order of their messages."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[tuple[Ticket | None, Acknowledge]] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, ticket: Ticket | None, acknowledge: Acknowledge) -> None:
        """Add one that waits for its ticket, or, without one, only for those before it."""
        self._entries.append((ticket, acknowledge))

    def take(self) -> list[Acknowledge]:
        """Remove and return those that wait for nothing any more."""
        entries = self._entries
        taken = []
        while entries:
            ticket, acknowledge = entries[0]
            if ticket is not None and ticket.pending:
                break
            entries.popleft()
            taken.append(acknowledge)
        return taken
