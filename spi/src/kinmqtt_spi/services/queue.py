"""Queue store: a client's queued messages, messages in flight, and inbound QoS 2 identifiers (section 4.1).

Only persistent sessions are stored. Only their owner writes: every write carries the epoch of the owner's claim. The
owner also assigns the sequence numbers, so it need not wait for the store, and reads continue after a number.

All writes of a reactor turn go to :meth:`QueueStore.apply` in one ordered batch. Answers to clients wait for that
commit: PUBACK and PUBREC for the entries (and the inbound identifier), PUBREL for the release, PUBCOMP for the
removal of the inbound identifier. One batch is one transaction: an inbound identifier without its entries would lose
a message, and entries without it would duplicate one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from attrs import frozen

from kinmqtt_spi.properties import TEXT_BYTES, text_bytes
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.values import MESSAGE_BYTES, Client, Commit, Maybe, Message, MessageId

ENTRY_BYTES: Final = 160
"""The memory that a queue entry takes besides its message: the entry and its place in the queue."""

KNOWN_S: Final = 60.0
"""How long at least a QoS 2 message stays known after its exchange was completed, in seconds of the time that
:meth:`QueueStore.expire` gets. At most :data:`KNOWN_MESSAGES` of one client are, the newest."""

KNOWN_MESSAGES: Final = 20_000
"""What a busy subscriber gets while a fault lasts: its publishers may have to send again what it got before.

A broker without its network for 20 s is an example, where a subscriber gets 1000 messages of QoS 2 a second.
"""

EMPTY: Final[Mapping[int, MessageId]] = MappingProxyType({})

_IDENTIFIER_BYTES: Final = 8
_PLAIN_BYTES: Final = MESSAGE_BYTES + ENTRY_BYTES


def entry_bytes(message_bytes: int, identifiers: Sequence[int] = (), shared_filter: str | None = None) -> int:
    """Return the size of an entry, given the size of its message; see :attr:`Entry.size_bytes`."""
    size_bytes = message_bytes + ENTRY_BYTES
    if identifiers:
        size_bytes += _IDENTIFIER_BYTES * len(identifiers)
    if shared_filter is not None:
        size_bytes += TEXT_BYTES + text_bytes(shared_filter)
    return size_bytes


class Stage(Enum):
    """The delivery state of an outgoing message (section 4.3)."""

    QUEUED = "queued"
    SENT = "sent"
    """In flight: sent as PUBLISH under a packet identifier, not yet acknowledged."""
    RELEASED = "released"
    """PUBREC was received and PUBREL is to be sent. From here on only the packet identifier matters."""


class Entry(NamedTuple):
    """A message in one client's queue, with the properties of this delivery. All queues share the message."""

    sequence: int
    message: Message
    qos: int
    retain: bool = False
    identifiers: tuple[int, ...] = ()
    """The subscription identifiers to send along."""
    shared_filter: str | None = None
    """The shared subscription that chose this client, as ``$share/group/filter``: the message may be redistributed to
    another member. ``None`` for a non-shared subscription."""

    @property
    def size_bytes(self) -> int:
        """The approximate size in memory, which counts against limits in bytes.

        The message counts in full, even if several queues share it.
        """
        message = self.message
        topic = message.topic
        # Inlines Message.size_bytes and entry_bytes, because this runs several times for each entry.
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
    """Append an entry to the queue; with a packet identifier it is in flight at once."""

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
    """PUBREC was received: delete the message, keep the packet identifier."""

    client_id: str
    epoch: int
    sequence: int


class Remove(NamedTuple):
    """Acknowledged, expired or dropped: delete the entry, whatever its stage."""

    client_id: str
    epoch: int
    sequence: int


class Requeue(NamedTuple):
    """Move every entry in stage SENT back to its old place in the queue."""

    client_id: str
    epoch: int


class InboundOpen(NamedTuple):
    """A QoS 2 PUBLISH with this packet identifier was accepted; a repeat must not be accepted again.

    With ``message`` it is pending: other nodes have not committed it, and no PUBREC was sent. A repeat is forwarded
    again under the same message id. A later write without ``message`` completes it.
    """

    client_id: str
    epoch: int
    packet_id: int
    message: MessageId | None = None


class InboundClose(NamedTuple):
    """PUBREL was received: the packet identifier may be used again."""

    client_id: str
    epoch: int
    packet_id: int


class Purge(NamedTuple):
    """Delete everything of this client: entries, inflight and inbound identifiers."""

    client_id: str
    epoch: int


make_write: Final[Callable[..., Any]] = tuple.__new__
"""Makes a write or an :class:`Entry` from all of its fields: ``make_write(Purge, (client_id, epoch))``.

It is for the message path: calling the class would run a Python function."""

QueueWrite: TypeAlias = Append | Send | Release | Remove | Requeue | InboundOpen | InboundClose | Purge


@frozen(slots=True)
class QueueSizes:
    """The sizes of a queue, or of all queues together."""

    queued: int = 0
    queued_bytes: int = 0
    """The sum of :attr:`Entry.size_bytes` of the queued entries. A shared message counts in each queue."""
    inflight: int = 0
    inbound: int = 0


@frozen(slots=True)
class QueueState:
    """The state of a queue that a new owner needs."""

    inflight: tuple[InflightEntry, ...] = ()
    """In the order in which they were sent, which is the order of resending (MQTT-4.6.0-1)."""
    inbound: frozenset[int] = frozenset()
    """The QoS 2 packet identifiers that were accepted, without the pending ones."""
    last_sequence: int = 0
    """The highest sequence number ever appended. The owner continues from here."""
    sizes: QueueSizes = QueueSizes()
    pending: Mapping[int, MessageId] = EMPTY
    """The QoS 2 packet identifiers that are pending, with the ids of their messages."""


class OverflowPolicy(Enum):
    """The overflow policy of a full queue: the answers to ``queue_full``."""

    DROP_NEWEST = "drop_newest"
    DROP_OLDEST = "drop_oldest"
    DROP_QOS_0 = "drop_qos_0"
    """Drop the oldest QoS 0 entry; without one, the newest message."""
    KEEP_LATEST = "keep_latest"
    """Drop an older entry of the same topic; without one, the oldest entry."""
    REFUSE = "refuse"
    """Refuse the message: the publisher gets 0x97 (quota exceeded)."""


@frozen(slots=True)
class QueueFull:
    """The question of ``queue_full``."""

    client_id: str
    client: Client | None
    """``None`` while the client is offline."""
    sizes: QueueSizes
    message: Message


class QueueStore(Store, ABC):
    """Queues by client id, for persistent sessions."""

    @abstractmethod
    def apply(self, writes: Sequence[QueueWrite]) -> Commit:
        """Commit a batch of writes, in order, as one transaction.

        The first write of a client id sets its epoch, and a higher one raises it. A write with a lower epoch is
        refused: the rest of the batch is committed, and :class:`~kinmqtt_spi.errors.Fenced` names the refused
        clients. A write to an unknown sequence number or packet identifier has no effect: after a crash the owner may
        repeat writes that it does not know to be committed.
        """

    @abstractmethod
    def load(self, client_id: str) -> Maybe[QueueState]:
        """Return the inflight entries, inbound identifiers and counters of a client; empty for an unknown client."""

    @abstractmethod
    def read(self, client_id: str, after: int, limit: int) -> Maybe[Sequence[Entry]]:
        """Return at most ``limit`` entries in stage QUEUED with a sequence number above ``after``, in order."""

    @abstractmethod
    def known(self, client_id: str, ids: Set[MessageId]) -> Maybe[Set[MessageId]]:
        """Return those of these messages that the client's queue has or had: sending one again would double it.

        A message is known while it is queued or in flight, and of QoS 2 for :data:`KNOWN_S` seconds after its
        exchange was completed, unless the queue is purged. Asked only for messages that a node sends again after
        another node's end. A store may lose the memory of released and completed messages when it restarts.
        """

    def completed(self, client_id: str) -> Maybe[Sequence[MessageId]]:
        """Return the QoS 2 messages that are known though their entries are gone, the oldest first.

        They move with a session that is handed off. A store that nodes share need not know them, as in this default.
        """
        return ()

    def remember(self, client_id: str, ids: Sequence[MessageId]) -> None:
        """Know messages that :meth:`completed` has returned on another node. The default is for shared stores."""
        return None

    @abstractmethod
    def sizes(self, client_id: str) -> QueueSizes:
        """Return the sizes of one queue, without waiting. Writes that are not committed may be missing."""

    @abstractmethod
    def totals(self) -> QueueSizes:
        """Return the sizes of all queues together, without waiting."""

    @abstractmethod
    def expire(self, now: float, limit: int) -> Maybe[Sequence[tuple[str, Entry]]]:
        """Remove at most ``limit`` queued entries whose message has expired at ``now``, and return them.

        Entries in flight stay (MQTT-4.3.3-7).
        """
