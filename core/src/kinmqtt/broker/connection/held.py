"""Acknowledgements that wait for tickets, and those behind them: they are sent in order (MQTT-4.6.0-2)."""

from __future__ import annotations

from kinmqtt.broker.message.ticket import Ticket


class HeldAcknowledgement:
    """One acknowledgement that is not sent yet."""

    __slots__ = ("is_slow", "ticket")

    def __init__(self, ticket: Ticket | None) -> None:
        self.ticket = ticket
        """What it waits for; ``None`` if only for those before it."""
        self.is_slow = False
        """Whether it waits for a node whose link had no credit, or for a full outbox."""

    def release(self) -> None:
        """Acknowledge the message, with the writes of the current turn."""
        raise NotImplementedError


class HeldAcknowledgements:
    """The acknowledgements of one connection that are not sent yet, in the order of their messages."""

    __slots__ = ("_entries", "slow")

    def __init__(self) -> None:
        self._entries: list[HeldAcknowledgement] = []
        self.slow = 0
        """The number of those that wait for a node whose link had no credit, or for a full outbox."""

    def __len__(self) -> int:
        return len(self._entries)

    def add(self, held: HeldAcknowledgement) -> None:
        """Add one behind all others."""
        self._entries.append(held)
        if held.ticket is not None and held.ticket.is_slow:
            held.is_slow = True
            self.slow += 1

    def take(self) -> list[HeldAcknowledgement]:
        """Remove and return those that wait for nothing any more."""
        entries = self._entries
        taken = 0
        for held in entries:
            ticket = held.ticket
            if ticket is not None and ticket.pending:
                break
            taken += 1
            if held.is_slow:
                self.slow -= 1
        self._entries = entries[taken:]
        return entries[:taken]
