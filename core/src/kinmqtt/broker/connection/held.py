"""Acknowledgements that wait for other nodes, and those behind them: they are sent in order (MQTT-4.6.0-2)."""

from __future__ import annotations

from collections import deque

from kinmqtt.broker.message.ticket import Ticket


class HeldAcknowledgement:
    """One acknowledgement that is not sent yet."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket | None) -> None:
        self.ticket = ticket
        """What it waits for; ``None`` if only for those before it."""

    def release(self) -> None:
        """Acknowledge the message, with the writes of the current turn."""
        raise NotImplementedError


class HeldAcknowledgements:
    """The acknowledgements of one connection that are not sent yet, in the order of their messages."""

    __slots__ = ("_entries",)

    def __init__(self) -> None:
        self._entries: deque[HeldAcknowledgement] = deque()

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, held: HeldAcknowledgement) -> None:
        """Add one behind all others."""
        self._entries.append(held)

    def take(self) -> list[HeldAcknowledgement]:
        """Remove and return those that wait for nothing any more."""
        entries = self._entries
        taken: list[HeldAcknowledgement] = []
        while entries:
            held = entries[0]
            ticket = held.ticket
            if ticket is not None and ticket.pending:
                break
            entries.popleft()
            taken.append(held)
        return taken
