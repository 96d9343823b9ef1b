"""The answers that a message awaits from other nodes before it is acknowledged."""

from __future__ import annotations

from collections.abc import Callable

from kinmqtt_spi.reasons import ReasonCode


class Ticket:
    """Counts the nodes that have not answered for one message, and collects what they said."""

    __slots__ = ("_calls", "failure", "is_elsewhere", "is_refused", "owner", "pending")

    def __init__(self) -> None:
        self.pending = 0
        """The number of answers that are missing."""
        self.is_refused = False
        """Whether a queue was full and refused the message."""
        self.is_elsewhere = False
        """Whether a node was asked for a session that it does not have."""
        self.failure: ReasonCode | None = None
        """Why a node could not commit the message: it must not be acknowledged."""
        self.owner: object = None
        """The connection that waits for it last."""
        self._calls: list[Callable[[], object]] = []

    def expect(self) -> None:
        """Wait for one more answer."""
        self.pending += 1

    def settle(self) -> None:
        """Note an answer; after the last one the callbacks are called."""
        self.pending -= 1
        if not self.pending and self._calls:
            calls, self._calls = self._calls, []
            for call in calls:
                call()

    def when_settled(self, call: Callable[[], object]) -> None:
        """Add a callback for the last answer, which must be missing."""
        self._calls.append(call)
