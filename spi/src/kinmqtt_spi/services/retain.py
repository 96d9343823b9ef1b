"""Retain store: the last message of each topic that asked to be kept (section 3.3.1.3)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final

from attrs import frozen

from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit, Maybe, Message

RETAINED_BYTES: Final = 200
"""What a retained message takes in memory besides the message: its version, and its place among the topics."""

RETAINED_LEVEL_BYTES: Final = 150
"""What each further level of its topic takes: little where others share it, else about 280 bytes."""


def retained_bytes(message: Message) -> int:
    """About what a message takes in memory once it is retained, which is what it counts for where bytes are bounded.

    Each level of its topic takes its own.
    """
    return message.size_bytes + RETAINED_BYTES + RETAINED_LEVEL_BYTES * message.topic.count("/")


@frozen(slots=True, order=True)
class RetainVersion:
    """Orders the writes of one topic, whichever node they come from: later time, then node, then count."""

    received_at: float
    node: int
    counter: int


@frozen(slots=True)
class RetainWrite:
    """Replace the retained message of a topic; a message with an empty payload deletes it (MQTT-3.3.1-6)."""

    message: Message
    version: RetainVersion


@frozen(slots=True)
class RetainPage:
    """Some of the retained messages that match, and where to go on; ``cursor`` is ``None`` at the end."""

    messages: tuple[Message, ...]
    cursor: object = None


@frozen(slots=True)
class RetainContents:
    """Some of everything that is retained, as writes that would bring it about; ``cursor`` as in a page."""

    writes: tuple[RetainWrite, ...]
    cursor: object = None


class RetainStore(Store, ABC):
    """Retained messages by topic name."""

    @abstractmethod
    def put(self, writes: Sequence[RetainWrite]) -> Commit:
        """Keep a batch in order. A write older than what the topic holds is skipped: the newer one has won.

        A deletion is remembered long enough to win over older writes that arrive late from other nodes.
        """

    @abstractmethod
    def match(self, filter: str, cursor: object = None, limit: int = 100) -> Maybe[RetainPage]:
        """A page of the retained messages whose topic matches the filter, by the rules of section 4.7.

        ``cursor`` is that of the page before. A message put or deleted in between may or may not be seen; one
        that stays is seen exactly once. A page never takes long: it may be short, or empty, while its cursor says
        that there is more. A filter without wildcards has its answer in the first page.
        """

    @abstractmethod
    def iterate(self, cursor: object = None, limit: int = 1000) -> Maybe[RetainContents]:
        """A page of all retained messages, those under ``$`` included: for copies and for people.

        ``cursor`` is that of the page before, and what holds for :meth:`match` holds here.
        """

    @abstractmethod
    def count(self) -> int:
        """How many topics hold a retained message, without waiting."""

    @abstractmethod
    def size_bytes(self) -> int:
        """The sum of what they count for (:func:`retained_bytes`), without waiting."""

    def held_by(self, username: str) -> tuple[int, int] | None:
        """How many retained messages are of a user, and the sum of what they count for, without waiting.

        ``None`` where a store does not count them by user: then a user may have all the room that there is.
        """
        return None

    @abstractmethod
    def expire(self, now: float, limit: int) -> Maybe[Sequence[Message]]:
        """Remove at most ``limit`` messages that have expired at ``now``; answers what was removed."""

    def newest(self) -> float:
        """The latest time of any version it knows of, deletions included, without waiting; 0 where it can't say.

        The broker gives its next write a later one: else what it retains would be skipped for an older write where
        its clock was set back, or is behind that of another broker.
        """
        return 0.0
