"""Queue store: what waits for a client, what is in flight to it, and the QoS 2 ids it has sent (section 4.1).

Only sessions that outlive their connection are kept in a store. Their owner, and nobody else, writes: every
write carries the epoch of the owner's claim. The owner also gives each entry its sequence number, so that a
store need not answer before the owner goes on, and reads continue after a number rather than at a position.

All writes of a reactor turn go to :meth:`QueueStore.apply` in one ordered batch, whatever their sort. What a
client is told waits for that commit: PUBACK and PUBREC for the entries (and the inbound id) to be kept, PUBREL
for the release, PUBCOMP for the inbound id to be gone. One batch is one transaction, because an inbound id kept
without its entries would lose a message, and entries kept without it would double one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, NamedTuple, TypeAlias

from attrs import frozen

from kinmqtt_spi.properties import TEXT_BYTES, text_bytes
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import MESSAGE_BYTES, Client, Commit, Maybe, Message

ENTRY_BYTES: Final = 160
"""What an entry of a queue takes in memory besides its message: the entry and its place in the queue."""

_IDENTIFIER_BYTES: Final = 8
_PLAIN_BYTES: Final = MESSAGE_BYTES + ENTRY_BYTES


def entry_bytes(message_bytes: int, identifiers: Sequence[int] = (), shared_filter: str | None = None) -> int:
    """What an entry counts for, with a message of that size; see :attr:`Entry.size_bytes`."""
    size_bytes = message_bytes + ENTRY_BYTES
    if identifiers:
        size_bytes += _IDENTIFIER_BYTES * len(identifiers)
    if shared_filter is not None:
        size_bytes += TEXT_BYTES + text_bytes(shared_filter)
    return size_bytes


class Stage(Enum):
    """Where an outgoing message stands (section 4.3)."""

    QUEUED = "queued"
    SENT = "sent"
    """In flight: sent as PUBLISH under a packet identifier, not yet acknowledged."""
    RELEASED = "released"
    """PUBREC was seen and PUBREL is owed: only the packet identifier matters from here on."""


class Entry(NamedTuple):
    """A message in one client's queue, with what this delivery adds to it. The message is shared by all queues."""

    sequence: int
    message: Message
    qos: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    """The subscription identifiers to send along."""
    shared_filter: str | None = None
    """The shared subscription that chose this client, as ``$share/group/filter``, where one did: another member may
    take its place."""

    @property
    def size_bytes(self) -> int:
        """About what the entry takes in memory, which is what it counts for where bytes are bounded.

        The message counts in full, also where several queues share it.
        """
        message = self.message
        topic = message.topic
        # As Message.size_bytes and entry_bytes have it, without the calls: each entry comes here several times.
        size_bytes = _PLAIN_BYTES + (len(topic) if topic.isascii() else 4 * len(topic)) + len(message.payload)
        if message.properties:
            size_bytes += message.properties.size_bytes
        if self.identifiers or self.shared_filter is not None:
            size_bytes = entry_bytes(size_bytes - ENTRY_BYTES, self.identifiers, self.shared_filter)
        return size_bytes


@frozen(slots=True)
class InflightEntry:
    """An entry that has a packet identifier. ``entry`` is ``None`` once it is released."""

    sequence: int
    packet_id: int
    stage: Stage
    entry: Entry | None


class Append(NamedTuple):
    """Put an entry behind all others; with a packet identifier it goes in flight at once."""

    client_id: str
    epoch: int
    entry: Entry
    packet_id: int | None = None


class Send(NamedTuple):
    """Move a queued entry in flight under a packet identifier."""

    client_id: str
    epoch: int
    sequence: int
    packet_id: int


class Release(NamedTuple):
    """PUBREC was received: forget the message, keep the packet identifier."""

    client_id: str
    epoch: int
    sequence: int


class Remove(NamedTuple):
    """Acknowledged, expired or dropped: forget the entry in whatever stage it is."""

    client_id: str
    epoch: int
    sequence: int


class Requeue(NamedTuple):
    """Take every entry in stage SENT back into the queue in its old place: nobody answers for them now."""

    client_id: str
    epoch: int


class InboundOpen(NamedTuple):
    """A QoS 2 PUBLISH with this packet identifier was taken over; a repeat must not be."""

    client_id: str
    epoch: int
    packet_id: int


class InboundClose(NamedTuple):
    """PUBREL was received: the packet identifier may be used anew."""

    client_id: str
    epoch: int
    packet_id: int


class Purge(NamedTuple):
    """Forget everything of this client: entries, inflight and inbound identifiers."""

    client_id: str
    epoch: int


make_write: Final[Callable[..., Any]] = tuple.__new__
"""``make_write(Append, (client_id, epoch, entry, packet_id))`` is an :class:`Append`, and so are the other writes and
:class:`Entry`, where each field is given: for the message path. Calling the class runs a Python function."""

QueueWrite: TypeAlias = Append | Send | Release | Remove | Requeue | InboundOpen | InboundClose | Purge


@frozen(slots=True)
class QueueSizes:
    """How much a queue, or all queues together, hold."""

    queued: int = 0
    queued_bytes: int = 0
    """The :attr:`Entry.size_bytes` of what is queued: a message shared by several queues counts in each."""
    inflight: int = 0
    inbound: int = 0


@frozen(slots=True)
class QueueState:
    """What a new owner needs before it can go on."""

    inflight: tuple[InflightEntry, ...] = ()
    """In the order in which they were sent, which is the order of resending (MQTT-4.6.0-1)."""
    inbound: frozenset[int] = frozenset()
    last_sequence: int = 0
    """The highest sequence number ever appended; the owner counts on from here."""
    sizes: QueueSizes = QueueSizes()


class FullPolicy(Enum):
    """What gives way when a queue is full: the answers to ``queue_full``."""

    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"
    DROP_QOS_0 = "drop_qos_0"
    """The oldest QoS 0 entry first; where there is none, the newest message."""
    KEEP_LATEST = "keep_latest"
    """An older entry of the same topic gives way; where there is none, the oldest entry."""
    REFUSE = "refuse"
    """The publisher is told 0x97 (quota exceeded)."""


@frozen(slots=True)
class QueueFull:
    """The question of ``queue_full``."""

    client_id: str
    client: Client | None
    """``None`` while the client is offline."""
    sizes: QueueSizes
    message: Message


class QueueStore(Store, ABC):
    """Queues by client id, for sessions that outlive their connection."""

    @abstractmethod
    def apply(self, writes: Sequence[QueueWrite]) -> Commit:
        """Keep a batch of writes, in order, as one transaction.

        The first write of a client id fixes its epoch and a later, higher one raises it; a write with a lower
        epoch is refused: the rest of the batch is kept and :class:`~kinmqtt_spi.errors.Fenced` names the refused.
        A write to a sequence number or packet identifier that is not there changes nothing: after a crash the
        owner may repeat what it can't know to be kept.
        """

    @abstractmethod
    def load(self, client_id: str) -> Maybe[QueueState]:
        """Inflight entries, inbound identifiers and counters of a client; empty for an unknown one."""

    @abstractmethod
    def read(self, client_id: str, after: int, limit: int) -> Maybe[Sequence[Entry]]:
        """At most ``limit`` entries in stage QUEUED with a sequence number above ``after``, in order."""

    @abstractmethod
    def sizes(self, client_id: str) -> QueueSizes:
        """What one queue holds, without waiting: the answer may trail writes that are not yet kept."""

    @abstractmethod
    def totals(self) -> QueueSizes:
        """What all queues hold together, without waiting."""

    @abstractmethod
    def expire(self, now: float, limit: int) -> Maybe[Sequence[tuple[str, Entry]]]:
        """Remove at most ``limit`` queued entries whose message has expired at ``now``; answers what was removed.

        Entries in flight are left alone (MQTT-4.3.3-7).
        """
