"""Retain store: the retained message of each topic (section 3.3.1.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit, Maybe, Message

RETAINED_BYTES: Final = 200
"""The memory that a retained message takes besides the message: its version and its place in the topic tree."""

RETAINED_LEVEL_BYTES: Final = 150
"""The memory for each further topic level: a mean, little if other topics share it, else about 280 bytes."""

DELETION_S: Final = 86_400.0
"""How long a deletion supersedes older writes that arrive late, in seconds. Nodes that were apart for longer may
bring back what was deleted meanwhile."""


def retained_bytes(message: Message) -> int:
    """Return the approximate size in memory of a retained message, which counts against limits in bytes."""
    return message.size_bytes + RETAINED_BYTES + RETAINED_LEVEL_BYTES * message.topic.count("/")


@frozen(slots=True, order=True)
class RetainVersion:
    """Orders the writes of one topic across nodes: by time, then by node, then by counter."""

    received_at: float
    node: int
    counter: int


@frozen(slots=True)
class RetainWrite:
    """Replace the retained message of a topic; a message with an empty payload deletes it (MQTT-3.3.1-6)."""

    message: Message
    version: RetainVersion
    expected: RetainVersion | None = None
    """Compare and set: the write is skipped unless this is the version that the topic has. ``None`` for any."""
    publisher_epoch: int = 0
    """The epoch in which the publisher's session was this node's; 0 if it does not matter.

    A store that nodes share skips the write if the publisher's session has a higher epoch, where it can see that in
    the same transaction: the client has gone to another node, and publishes again there.
    """


@frozen(slots=True)
class RetainPage:
    """A page of matching retained messages. ``cursor`` continues after it, and is ``None`` at the end."""

    messages: tuple[Message, ...]
    cursor: object = None


@frozen(slots=True)
class RetainContents:
    """A page of all retained messages, as writes that would restore them. ``cursor`` as in :class:`RetainPage`."""

    writes: tuple[RetainWrite, ...]
    cursor: object = None


class RetainStore(Store, ABC):
    """Retained messages by topic name."""

    @abstractmethod
    def put(self, writes: Sequence[RetainWrite]) -> Commit:
        """Commit a batch, in order. A write with an older version than the topic's is skipped.

        A deletion is remembered long enough to supersede older writes that arrive late from other nodes: for
        :data:`DELETION_S`, if there are not too many.
        """

    @abstractmethod
    def match(self, filter: str, cursor: object = None, limit: int = 100) -> Maybe[RetainPage]:
        """Return a page of the retained messages whose topic matches the filter (section 4.7).

        ``cursor`` is that of the page before. A message that is put or deleted between pages may or may not be seen;
        any other is seen exactly once. A page takes little time, so it may be short or empty although its cursor is
        not ``None``. For a filter without wildcards the first page has the answer.
        """

    @abstractmethod
    def iterate(self, cursor: object = None, limit: int = 1000) -> Maybe[RetainContents]:
        """Return a page of all retained messages, including those under ``$``.

        ``cursor`` is that of the page before; pages behave as those of :meth:`match`.
        """

    def deletions(self, cursor: object = None, limit: int = 1000) -> Maybe[RetainContents]:
        """Return a page of the deletions that are remembered, as writes that would repeat them.

        ``cursor`` is that of the page before. Nodes that share no store compare them with those of the others; a
        store that all nodes share need not tell.
        """
        return RetainContents(())

    @abstractmethod
    def count(self) -> int:
        """Return the number of topics with a retained message, without waiting."""

    @abstractmethod
    def size_bytes(self) -> int:
        """Return the sum of :func:`retained_bytes` of all retained messages, without waiting."""

    def held_by(self, username: str) -> tuple[int, int] | None:
        """Return the number and the size in bytes of a user's retained messages, without waiting.

        ``None`` if the store does not count by user: then one user may take the whole capacity.
        """
        return None

    @abstractmethod
    def expire(self, now: float, limit: int) -> Maybe[Sequence[Message]]:
        """Remove at most ``limit`` messages that have expired at ``now``, and return them."""

    def newest(self) -> float:
        """Return the latest time of any known version, deletions included, without waiting; 0 if unknown.

        The broker gives its next write a later time. Otherwise that write would be skipped if this broker's clock was
        set back, or is behind another broker's.
        """
        return 0.0
