"""Outbox: messages that must leave the broker, committed before their publishers are acknowledged.

An outbox is to a program what a persistent session is to a client: it has subscriptions and a queue in the queue
store, and its messages survive restarts. PUBACK and PUBREC wait until a message is committed for each outbox that
wants it (the pattern of the transactional outbox). What a program has acknowledged is removed.

In a cluster each message enters the outbox of the node that took it from its publisher, and of no other. If a node is
gone, another one that has the same plugin drains its outbox, where the stores are shared.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Final, NamedTuple, TypeAlias

from attrs import frozen

from kinmqtt_spi.settings import setting
from kinmqtt_spi.values import Maybe, Message

CLIENT_ID_PREFIX: Final = "$outbox/"
"""What the client ids of outboxes begin with in the session store; node, plugin and name follow, between slashes."""

MAX_WINDOW = 65_535
"""The most messages that an outbox may have handed out and not got back, held ones included."""


class WhenFull(Enum):
    """What is done with a message when an outbox is full."""

    PAUSE = "pause"
    """Queue it up to a tenth above the bounds, and do not read from its publisher until the outbox has 20 % of its
    room again. After ``pause_limit_s``, and above that tenth, REFUSE."""
    REFUSE = "refuse"
    """Do not acknowledge it. A publisher that speaks MQTT 5 gets 0x97 (quota exceeded); another is disconnected."""
    DROP_OLDEST = "drop_oldest"
    """Queue it, and drop the oldest message."""
    DROP_NEWEST = "drop_newest"
    """Drop it. Its publisher is acknowledged."""


class AtMostOnce(Enum):
    """What is done with messages of QoS 0."""

    PASS = "pass"
    """Hand them out without storing them, while there is room in the window.

    They may overtake earlier messages of QoS 1 and 2 whose commit is under way; STORE keeps the order.
    """
    STORE = "store"
    """Store them like messages of QoS 1."""
    IGNORE = "ignore"
    """Leave them out."""


@frozen(slots=True)
class OutboxSettings:
    """The bounds of an outbox, and what happens at them."""

    max_messages: int = setting(100_000, help="messages that may wait in the outbox", minimum=1)
    max_bytes: int = setting(
        256 << 20, help="their approximate size in memory; the last message may exceed it", unit="bytes", minimum=1024
    )
    window: int = setting(4096, help="messages handed out and not acknowledged yet", minimum=1, maximum=MAX_WINDOW)
    when_full: WhenFull = setting(WhenFull.PAUSE, help="what is done with a message when the outbox is full")
    pause_limit_s: float = setting(
        30.0, help="how long publishers are not read from before they are refused", unit="s", minimum=0.1
    )
    qos_0: AtMostOnce = setting(AtMostOnce.PASS, help="what is done with messages of QoS 0")


DEFAULT_OUTBOX: Final = OutboxSettings()


class OutboxEntry(NamedTuple):
    """A message that an outbox hands out."""

    number: int
    """What :meth:`Outbox.acknowledge` takes. An entry that is handed out again has the same number."""
    message: Message
    is_repeated: bool
    """Whether it may have been handed out before, by this process or an earlier one."""


make_entry: Final = tuple.__new__
"""Makes an :class:`OutboxEntry` of a tuple with all its fields, faster than the class does."""


class Accepted(Enum):
    """The answer of :meth:`Outbox.put`."""

    ACCEPTED = "accepted"
    """It is in the outbox when this turn's writes are committed."""
    DROPPED = "dropped"
    """The outbox is full and drops the newest message, or the message is expired."""
    REFUSED = "refused"
    """The outbox is full or not open: nobody may be told that the message was accepted."""


@frozen(slots=True)
class OutboxFigures:
    """The state of an outbox."""

    queued: int
    """Messages that wait, without those handed out."""
    queued_bytes: int
    """Their approximate size in memory."""
    inflight: int
    """Messages handed out and not acknowledged."""
    oldest_at: float | None
    """When the oldest message handed out was received, in seconds since the epoch; ``None`` if there is none."""
    fullness: float
    """The share of the bounds that is used, from 0 to about 1.1."""


EntryHandler: TypeAlias = Callable[[Sequence[OutboxEntry]], None]
"""Takes entries in their order. It must not raise; it acknowledges each of them later, in any order."""


class Outbox(ABC):
    """The outbox of one program, on one node. See the module's text."""

    name: str
    """The name under which its plugin has opened it."""

    @abstractmethod
    def subscribe(self, filters: Sequence[str]) -> None:
        """Set the topic filters of the messages that it gets from now on; none of them is shared.

        Raises ``ValueError`` for an invalid filter, and
        :class:`~kinmqtt_spi.errors.SubscriptionRefused`.
        """

    @abstractmethod
    def put(self, message: Message) -> Accepted:
        """Put a message in, whatever the filters; it is committed with this turn's writes.

        If another node claims the outbox meanwhile, the message is in none. In the call of a tap the publisher of the
        message that the tap sees is then not acknowledged, and sends it again. Otherwise the message is put in again
        once the outbox is back; until then it is in memory only.

        Raises ``ValueError`` for a message that no PUBLISH can carry.
        """

    @abstractmethod
    def consume(self, handler: EntryHandler) -> None:
        """Hand entries to ``handler`` from now on, each after its commit, in order, in a later reactor turn.

        What was handed out before and not acknowledged comes first. At most ``window`` entries are handed out at a
        time, without those on :meth:`hold`. Call it once.
        """

    @abstractmethod
    def acknowledge(self, numbers: Sequence[int]) -> None:
        """Remove entries that were handed out; it is committed with this turn's writes."""

    @abstractmethod
    def hold(self, numbers: Sequence[int]) -> None:
        """Let entries that were handed out have no place in the window, until they are acknowledged.

        For entries that may take long, so that others need not wait for them. At most :data:`MAX_WINDOW` entries
        are handed out, held ones included. A restart forgets what is held.
        """

    @abstractmethod
    def figures(self) -> OutboxFigures:
        """Return the outbox's state."""

    @abstractmethod
    def discard(self) -> Maybe[None]:
        """Delete the outbox with all its messages; completes with the commit.

        In ``start`` it is not open yet: then it is deleted when it opens, so do not await it there.
        """
