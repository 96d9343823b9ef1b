"""Event log: what happened to clients, durable, ordered and replayable, keyed by client id."""

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
"""What an event takes in memory besides the texts and numbers in it: the objects, and its place in a log."""


class EventKind(Enum):
    """What an event reports."""

    CONNECT = "CONNECT"
    DISCONNECT = "DISCONNECT"
    SUBSCRIBE = "SUBSCRIBE"
    UNSUBSCRIBE = "UNSUBSCRIBE"
    ADD_RETAIN = "ADD_RETAIN"
    REMOVE_RETAIN = "REMOVE_RETAIN"
    QUEUE_DROP = "QUEUE_DROP"


@frozen(slots=True, order=True)
class EventVersion:
    """Orders the events of one client id, out-of-order arrivals included: compared as numbers, never as text."""

    epoch: int
    counter: int


@frozen(slots=True)
class Event:
    """One thing that happened. ``data`` holds plain values: no payloads, no passwords."""

    kind: EventKind
    client_id: str
    version: EventVersion
    at: float
    """Seconds since the epoch, UTC."""
    data: Mapping[str, object]
    schema_version: int = EVENT_SCHEMA_VERSION

    @property
    def size_bytes(self) -> int:
        """About what the event takes in memory, which is what it counts for where bytes are bounded."""
        return EVENT_BYTES + text_bytes(self.client_id) + _data_bytes(self.data)


_PLAIN: Final = frozenset((int, float, bool, type(None)))
"""Values that hold no others: to ask a value whether it is a mapping takes long."""


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
    """An event with its place in the log; offsets only go up, and need not be consecutive."""

    offset: int
    event: Event


Handler: TypeAlias = Callable[[Sequence[Recorded]], Maybe[None]]
"""Takes a batch of one group's events. Its return (or the awaitable's result) commits the batch's offsets; if it
raises, the same batch comes again."""


class Start(Enum):
    """Where a group without a committed offset begins."""

    OLDEST = "oldest"
    NEWEST = "newest"


class Consumer(ABC):
    """A running consumer."""

    @abstractmethod
    def stop(self) -> Maybe[None]:
        """Take no further batches; done when the handler's last call is."""


class EventLog(Store, ABC):
    """An ordered log. Order holds per client id; delivery is at least once."""

    @abstractmethod
    def append(self, events: Sequence[Event]) -> Commit:
        """Keep a batch of events in order."""

    @abstractmethod
    def read(self, after: int, limit: int) -> Maybe[Sequence[Recorded]]:
        """At most ``limit`` events with an offset above ``after`` (-1 for the beginning), in order.

        Raises :class:`~kinmqtt_spi.errors.OffsetOutOfRange` where the next event after ``after`` is gone.
        """

    @abstractmethod
    def consume(self, group: str, handler: Handler, start: Start = Start.OLDEST) -> Consumer:
        """Hand events to ``handler``, from the group's committed offset on, and as they come.

        Consumers of one group divide the client ids among them; a group of one reads everything.
        """

    @abstractmethod
    def committed(self, group: str) -> Maybe[int]:
        """The group's committed offset; -1 where it has none."""
