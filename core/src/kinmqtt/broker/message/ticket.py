"""What a message awaits before it is acknowledged: other nodes, outboxes, and what taps have made of it."""

from __future__ import annotations

from collections.abc import Callable

from mypy_extensions import mypyc_attr, trait

from kinmqtt_spi.reasons import ReasonCode


@trait
class TicketOwner:
    """What acknowledges messages when their tickets are settled: a connection."""

    __slots__ = ()

    def release_held(self) -> None:
        """Acknowledge the messages that wait for nothing any more, in order."""
        raise NotImplementedError


@mypyc_attr(acyclic=True, free_list_len=1)
class Ticket:
    """Counts the answers that are missing for one message, and collects what they said.

    An answer comes from another node, from an outbox that has paused the publisher, or with the commit of what the
    message needs beyond its own turn. Nodes that are gone are settled too, so each ticket ends, and lets go of all
    that it refers to.
    """

    __slots__ = (
        "_calls",
        "failure",
        "is_due",
        "is_elsewhere",
        "is_refused",
        "is_slow",
        "is_unawaited",
        "is_withheld",
        "owner",
        "pending",
    )

    def __init__(self) -> None:
        self.pending = 0
        """The number of answers that are missing."""
        self.is_refused = False
        """Whether a full queue refused the message, or what a tap has made of it."""
        self.is_due = False
        """Whether nobody would publish it again: a will, or a message that a plugin has stored until now."""
        self.is_withheld = False
        """Whether an outbox refused it: it must not be acknowledged, not even to a client of MQTT 3."""
        self.is_elsewhere = False
        """Whether a node was asked for a session that it does not have."""
        self.is_slow = False
        """Whether a node's link has no credit, or an outbox is full: the publisher should send no more until then."""
        self.is_unawaited = False
        """Whether nobody waits for it, so that there is nobody to pause."""
        self.failure: ReasonCode | None = None
        """Why the message, or what a tap has made of it, is not committed: it must not be acknowledged."""
        self.owner: TicketOwner | None = None
        """The connection that waits for it last; ``None`` if none does."""
        self._calls: list[Callable[[], object]] | None = None

    def withhold(self) -> None:
        """Note that an outbox refused the message."""
        self.is_withheld = self.is_refused = True

    def expect(self) -> None:
        """Wait for one more answer."""
        self.pending += 1

    def settle(self) -> None:
        """Note an answer; after the last one the owner acknowledges the message, and the callbacks are called."""
        owner = self.note_answer()
        if owner is not None:
            owner.release_held()

    def note_answer(self) -> TicketOwner | None:
        """Note an answer like :meth:`settle`, and return the owner that the caller lets acknowledge."""
        self.pending -= 1
        if self.pending:
            return None
        calls = self._calls
        if calls is not None:
            self._calls = None
            for call in calls:
                call()
        owner, self.owner = self.owner, None
        return owner

    def when_settled(self, call: Callable[[], object]) -> None:
        """Add a callback for the last answer, which must be missing."""
        if self._calls is None:
            self._calls = []
        self._calls.append(call)
