"""Event log: client events, durable, ordered and replayable, keyed by client id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from attrs import frozen

from kinmqtt_spi.properties import BINARY_BYTES, NUMBER_BYTES, TEXT_BYTES, text_bytes
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import Commit, Maybe

EVENT_SCHEMA_VERSION: Final = 1

EVENT_BYTES: Final = 550
"""The memory that an event takes besides its texts and numbers: the objects and its place in a log."""


class EventKind(Enum):
    """The type of an event."""

    CONNECT = "CONNECT"
    DISCONNECT = "DISCONNECT"
    SUBSCRIBE = "SUBSCRIBE"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    ADD_RETAIN = "ADD_RETAIN"
    REMOVE_RETAIN = "REMOVE_RETAIN"
    QUEUE_DROP = "QUEUE_DROP"


@frozen(slots=True, order=True)
class EventVersion:
    """Orders the events of one client id, even if they arrive out of order. Compared as numbers, never as text."""

    epoch: int
    counter: int


@frozen(slots=True)
class Event:
    """One event. ``data`` has plain values, without payloads and passwords."""

    kind: EventKind
    client_id: str
    version: EventVersion
    at: float
    """Seconds since the epoch, UTC."""
    data: Mapping[str, object]
    schema_version: int = EVENT_SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory, which counts against limits in bytes."""
        return EVENT_BYTES + text_bytes(self.client_id) + _data_bytes(self.data)


_PLAIN: Final = frozenset((int, float, bool, type(None)))
"""Scalar values. The check for them is faster than the check for a mapping."""


def _data_bytes(data: Mapping[str, object]) -> int:
    size_bytes = 0
    left: list[object] = list(data.values())
    while left:
        value = left.pop()
        if isinstance(value, str):
            size_bytes += TEXT_BYTES + text_bytes(value)
        elif isinstance(value, bytes):
            size_bytes += BINARY_BYTES + len(value)
        else:
            size_bytes += NUMBER_BYTES
            if type(value) in _PLAIN:
                continue
            if isinstance(value, Mapping):
                left += value.keys()
                left += value.values()
            elif isinstance(value, Sequence | set | frozenset):
                left += value
    return size_bytes


@frozen(slots=True)
class Recorded:
    """An event with its offset in the log. Offsets increase, and need not be consecutive."""

    offset: int
    event: Event


Handler: TypeAlias = Callable[[Sequence[Recorded]], Maybe[None]]
"""Handles a batch of one group's events. When it returns (or its awaitable completes), the batch's offsets are
committed. If it raises, the same batch is delivered again."""


class Start(Enum):
    """Where a group without a committed offset begins."""

    OLDEST = "oldest"
    NEWEST = "newest"


class Consumer(ABC):
    """A running consumer."""

    @abstractmethod
    def stop(self) -> Maybe[None]:
        """Take no further batches; completes when the handler's last call has completed."""


class EventLog(Store, ABC):
    """A log of events, ordered by client id, with at-least-once delivery to consumers."""

    @abstractmethod
    def append(self, events: Sequence[Event]) -> Commit:
        """Commit a batch of events, in order."""

    @abstractmethod
    def read(self, after: int, limit: int) -> Maybe[Sequence[Recorded]]:
        """Return at most ``limit`` events with an offset above ``after`` (-1 for the beginning), in order.

        Raises :class:`~kinmqtt_spi.errors.OffsetOutOfRange` if the next event after ``after`` was deleted.
        """

    @abstractmethod
    def consume(self, group: str, handler: Handler, start: Start = Start.OLDEST) -> Consumer:
        """Pass events to ``handler``, from the group's committed offset on, and as they arrive.

        The client ids are divided among the consumers of a group; a single consumer gets all of them.
        """

    @abstractmethod
    def committed(self, group: str) -> Maybe[int]:
        """Return the group's committed offset; -1 if it has none."""
