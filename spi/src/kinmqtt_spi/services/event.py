"""Event log: client events, durable, ordered and replayable, keyed by client id."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Final, TypeAlias

from attrs import frozen

from kinmqtt_spi.properties import BINARY_BYTES, NUMBER_BYTES, TEXT_BYTES, text_bytes
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Commit, Maybe

EVENT_SCHEMA_VERSION: Final = 2
"""The version of the events' data. Readers accept 1 as well, whose events have fewer fields (``docs/event.md``)."""

EVENT_BYTES: Final = 550
"""The memory that an event takes besides its texts and numbers: the objects and its place in a log."""


class EventKind(Enum):
    """The type of an event."""

    CONNECT = "CONNECT"
    DISCONNECT = "DISCONNECT"
    """The client or the broker has ended the connection."""
    CONNECTION_LOST = "CONNECTION_LOST"
    """The network connection was closed without a DISCONNECT."""
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
    partition: int = 0
    """The part of a feed that the offset counts in. The events of one client id are in one partition."""


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


@frozen(slots=True)
class HoldBounds:
    """``[events]``: how many events are stored for groups that hold them."""

    max_waiting: int = setting(
        200_000,
        help="events that wait for a plugin which must get all of them (such as event_kafka) and has not taken them; "
        "beyond, the oldest are deleted and counted (events.lost)",
        minimum=1,
    )
    max_waiting_bytes: int = setting(
        256 << 20, help="their approximate size in memory", unit="bytes", minimum=1 << 20
    )


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

    @abstractmethod
    def hold(self, group: str, start: Start = Start.OLDEST) -> None:
        """Delete no event that the group has not committed, up to the bounds of :meth:`bound`.

        A group without a committed offset begins at ``start``. Call it at each start, from ``event_feed`` or
        ``start``: the log remembers which groups are held until :meth:`forget_unheld`.
        """

    @abstractmethod
    def forget_unheld(self) -> Sequence[str]:
        """Stop holding events for groups that were held before the start and not since; returns their names.

        The broker calls it once, when all plugins have started. Their committed offsets stay.
        """

    @abstractmethod
    def bound(self, bounds: HoldBounds, on_lost: Callable[[int], object], on_group: Callable[[str], object]) -> None:
        """Set the bounds of what is held. The broker calls it once, before plugins start.

        ``on_lost`` is called with the number of events that were deleted although a held group had not committed
        them; ``on_group`` with the name of each group when it is first held or consumed.
        """

    @abstractmethod
    def lag(self, group: str) -> int:
        """Return the number of stored events after the group's committed offset; all of them if it has none."""


class EventFeed(ABC):
    """The events of the broker, or of all brokers of a cluster, for plugins.

    The built-in one (``kinmqtt_spi.memory.event_feed.LocalFeed``) has the events of this node's log. A plugin
    can provide one with the events of all nodes.
    """

    @abstractmethod
    def consume(
        self, group: str, handler: Handler, start: Start = Start.OLDEST, *, each_node: bool = False
    ) -> Consumer:
        """Pass events to ``handler``, from the group's committed offset on, and as they arrive.

        The events of a group are shared among its consumers, on whichever nodes: the events of one client id come to
        one of them, in order. With ``each_node`` every node is a group of its own, named by :func:`node_group`, and
        gets all events. Events may be delivered more than once; ``(client_id, version)`` tells them apart.
        """

    @abstractmethod
    def lag(self, group: str) -> Maybe[int]:
        """Return the number of events after the group's committed offset; all that are there if it has none.

        Name a consumer of ``each_node`` by :func:`node_group`. Raises
        :class:`~kinmqtt_spi.errors.ServiceUnavailable` if the feed can't be asked.
        """


def node_group(group: str, node: str) -> str:
    """Return the name of one node's group, for consumers that want every event on each node."""
    return f"{group}.{node}"
