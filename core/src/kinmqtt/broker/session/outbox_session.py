"""The session of an outbox: a persistent session whose messages go to a program of this process.

It has bounds of its own, and counts for nobody else's: a program that is away takes no room that clients share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, final

from twisted.logger import Logger

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication, ticket_of
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.session import Session
from kinmqtt.hooks.calls import SAID_AGAIN_AFTER_S
from kinmqtt.mqtt.packets import V5
from kinmqtt.settings import NEVER_EXPIRES
from kinmqtt_spi.pace import Pace, and_others
from kinmqtt_spi.services.outbox import (
    CLIENT_ID_PREFIX,
    MAX_WINDOW,
    AtMostOnce,
    OutboxEntry,
    OutboxSettings,
    WhenFull,
    make_entry,
)
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.services.queue import QueueState
from kinmqtt_spi.values import Client, Message

log = Logger("kinmqtt.outboxes")

PREFIX: Final = CLIENT_ID_PREFIX
"""What the client ids of outboxes begin with; no client may use such an id."""

ROOM_SHARE: Final = 0.8
"""Publishers are read from again when no more than this share of the bounds is used."""

PAUSE_SHARE: Final = 1.1
"""Up to this share of the bounds, messages of paused publishers are queued."""

DUE_SHARE: Final = 2.0
"""Up to this share of the bounds, wills and other messages that nobody would send again are queued."""

DROPPED: Final = OverflowAction.DROPPED
REFUSED: Final = OverflowAction.REFUSED
DROPS_OLDEST: Final = OverflowAction.QUEUE_DROPPING_OLDEST


def client_of(client_id: str) -> Client:
    """Return the client that the session of an outbox has: it has no user, and nobody else's rights."""
    return Client(client_id, None, protocol_version=V5)


@final
class OutboxSession(Session):
    """The messages of one outbox."""

    __slots__ = (
        "_arrived",
        "_dropped",
        "_ended",
        "_handed_out",
        "_handler",
        "_held",
        "_is_told",
        "_pace",
        "_passed",
        "_passed_bytes",
        "_passing",
        "_paused",
        "_resumes",
        "_timer",
        "_window",
        "is_lost",
        "settings",
    )

    def __init__(self, runtime: Runtime, client_id: str, epoch: int) -> None:
        self.settings = OutboxSettings()
        self._arrived: list[OutboxEntry] = []
        """What the handler gets in one of the next turns; its numbers are those of the queue store."""
        self._handed_out: dict[int, int] = {}
        """By number of a delivery: its packet identifier."""
        self._held: set[int] = set()
        """The numbers of deliveries that have no place in the window."""
        self._window = self.settings.window
        """How many deliveries may be handed out, held ones included."""
        self._handler: Callable[[list[OutboxEntry]], object] | None = None
        self._is_told = False
        """Whether the handler will be called."""
        self._passed = 0
        """The number of the last message of QoS 0, which falls."""
        self._passing: dict[int, int] = {}
        """By the numbers of messages of QoS 0 that are handed out: their sizes in bytes."""
        self._passed_bytes = 0
        """The sum of these."""
        self._resumes = False
        """Whether publishers are looked at in the next turn."""
        self.is_lost = False
        """Whether it stands for an outbox that another node has: it refuses all messages."""
        self._paused: deque[tuple[float, Ticket]] = deque()
        """Messages whose publishers are not read from, each with the time of its refusal, by the monotonic clock."""
        self._timer: Timer | None = None
        self._dropped: Callable[[str], object] = lambda why: None
        self._ended: Callable[[], object] = lambda: None
        self._pace = Pace(runtime.clock, SAID_AGAIN_AFTER_S)
        super().__init__(runtime, client_of(client_id), epoch, NEVER_EXPIRES, persistent=True)

    def configure(
        self, settings: OutboxSettings, dropped: Callable[[str], object], ended: Callable[[], object]
    ) -> None:
        """Set the bounds.

        ``dropped`` is called for each message that is dropped, with the reason; ``ended`` when it is deleted, or has
        another owner.
        """
        self.settings = settings
        self._dropped = dropped
        self._ended = ended
        self.outgoing.most_bytes = settings.max_bytes
        self._resize()

    def _resize(self) -> None:
        window = self._window = min(self.settings.window + len(self._held), MAX_WINDOW)
        self.outgoing.window = window

    def consume(self, handler: Callable[[list[OutboxEntry]], object]) -> None:
        """Hand deliveries to ``handler``, first those that are in flight from before."""
        self._handler = handler
        self._hand_out_again()
        self.wants_pump()
        self._runtime.turn.touch()

    def acknowledge(self, numbers: Sequence[int]) -> None:
        """Remove deliveries that were handed out, by their numbers; what is not in flight any more is left out."""
        handed_out = self._handed_out
        outgoing = self.outgoing
        if self._held:
            self._held.difference_update(numbers)
            self._resize()
        for number in numbers:
            if number < 0:
                self._passed_bytes -= self._passing.pop(number, 0)
                continue
            packet_id = handed_out.pop(number, 0)
            delivery = outgoing.flights.get(packet_id)
            if delivery is not None and delivery.sequence == number:
                outgoing.forget(packet_id)
                self.finished(delivery)

    def hold(self, numbers: Sequence[int]) -> None:
        """Let deliveries that were handed out have no place in the window, until they are acknowledged."""
        for number in numbers:
            if number in self._handed_out or number in self._passing:
                self._held.add(number)
        self._resize()
        self.wants_pump()
        self._runtime.turn.touch()

    @property
    def fullness(self) -> float:
        """The share of the bounds that queued messages use."""
        settings = self.settings
        return max(self.queue.count / settings.max_messages, self.queue.size_bytes / settings.max_bytes)

    @property
    def oldest_at(self) -> float | None:
        """When the oldest delivery in flight was received; ``None`` if there is none."""
        for _, delivery in self.outgoing:
            return delivery.publication.received_at
        return None

    @property
    def is_drained(self) -> bool:
        """Whether it has no messages."""
        return not (self.queue.count or len(self.outgoing))

    # What a session does with messages

    @property
    def is_outbox(self) -> bool:
        """See :meth:`QueueOwner.is_outbox`."""
        return True

    @property
    def has_packets_of_its_own(self) -> bool:
        """See :meth:`PacketSender.has_packets_of_its_own`: it takes messages and no packets."""
        return True

    @property
    def can_send(self) -> bool:
        """See :meth:`Session.can_send`."""
        if self._handler is None or self.queue.retrying or not self.outgoing.has_capacity:
            return False
        return len(self.outgoing.flights) + len(self._passing) < self._window

    def deliver(
        self,
        publication: Publication,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        shared_filter: str | None = None,
    ) -> bool:
        """See :meth:`Session.deliver`. The outbox of the node that has taken it over has a forwarded message."""
        audience = publication.audience
        if audience is not None and audience.is_forwarded:
            return True
        if self.is_lost:
            self._refuse(ticket_of(publication))
            return False
        return super().deliver(publication, qos, retain, identifiers, shared_filter)

    def deliver_particular(self, publication: Publication, retain: bool, identifiers: tuple[int, ...]) -> None:
        """See :meth:`PacketSender.deliver_particular`: takes a message of QoS 0 as the settings say."""
        how = self.settings.qos_0
        if how is AtMostOnce.STORE:
            self.deliver(publication, 1, retain, identifiers)
        elif how is AtMostOnce.PASS:
            audience = publication.audience
            if audience is not None and audience.is_forwarded:
                return
            taken = len(self.outgoing.flights) + len(self._passing)
            most_bytes = min(self.settings.max_bytes, self._runtime.limits.max_queued_bytes)
            if self._handler is None or taken >= self._window or self._passed_bytes >= most_bytes:
                self._drop(publication.message)
                return
            self._passed -= 1
            size_bytes = self._passing[self._passed] = publication.size_bytes
            self._passed_bytes += size_bytes
            self._announce(Delivery(publication, 0, retain, identifiers, self._passed))

    def transmit(self, packet_id: int, delivery: Delivery) -> None:
        """See :meth:`PacketSender.transmit`: hands a committed delivery out."""
        delivery.committed = True
        if self._handler is not None and self.outgoing.flights.get(packet_id) is delivery:
            self._handed_out[delivery.sequence] = packet_id
            self._announce(delivery)

    def restore(self, state: QueueState) -> None:
        """See :meth:`Session.restore`: what the consumer has already is not handed out again."""
        super().restore(state)
        self._hand_out_again()
        if self._held:
            self._held = {each for each in self._held if each in self._handed_out or each in self._passing}
            self._resize()

    def end(self) -> None:
        """See :meth:`Session.end`."""
        self._handler = None
        self._arrived.clear()
        self._handed_out.clear()
        self._passing.clear()
        self._held.clear()
        self._passed_bytes = 0
        self._settle(len(self._paused), accepted=False)
        super().end()
        self._ended()

    def _hand_out_again(self) -> None:
        if self._handler is None:
            return
        known, self._handed_out = self._handed_out, {}
        for packet_id, delivery in self.outgoing:
            if delivery.committed:
                self._handed_out[delivery.sequence] = packet_id
                if delivery.sequence not in known:
                    self._announce(delivery)

    def _announce(self, delivery: Delivery) -> None:
        """Let the handler have a delivery in the next turn."""
        entry = (delivery.sequence, delivery.publication.stored, delivery.sent)
        self._arrived.append(make_entry(OutboxEntry, entry))
        delivery.sent = True
        if not self._is_told:
            self._is_told = True
            self._runtime.turn.soon(self._call_handler)

    def _call_handler(self) -> None:
        self._is_told = False
        arrived, self._arrived = self._arrived, []
        if arrived and self._handler is not None:
            self._runtime.turn.touch()
            self._handler(arrived)

    # Its bounds

    def count_queued(self, more_bytes: int, more_messages: int = 0) -> None:
        """See :meth:`AccountHolder.count_queued`: it counts for nobody else."""
        self.queued_bytes += more_bytes
        if more_bytes < 0 and self._paused and not self._resumes:
            self._resumes = True
            self._runtime.turn.soon(self._resume_publishers)

    def _count_offline_inflight(self, size_bytes: int) -> None:
        """Count what is in flight for nobody: the window bounds it."""

    def _count_session(self, one: int) -> None:
        """Count for no limit on the sessions of clients."""

    def queue_is_full(self, count: int, size_bytes: int) -> bool:
        """See :meth:`QueueOwner.queue_is_full`."""
        return count >= self.settings.max_messages or size_bytes >= self.settings.max_bytes

    def queue_exceeds_limits(self, count: int, size_bytes: int) -> bool:
        """See :meth:`QueueOwner.queue_exceeds_limits`."""
        settings = self.settings
        if settings.when_full is not WhenFull.DROP_OLDEST:
            return False  # It refuses messages, and drops none that it has.
        return count > settings.max_messages or (size_bytes > settings.max_bytes and count > 1)

    def total_is_full(self) -> bool:
        """See :meth:`QueueOwner.total_is_full`."""
        return False

    def total_exceeds_limit(self) -> bool:
        """See :meth:`QueueOwner.total_exceeds_limit`."""
        return False

    def overflow_action(self, publication: Publication, is_empty: bool) -> OverflowAction | None:
        """See :meth:`QueueOwner.overflow_action`: the settings choose it."""
        when_full = self.settings.when_full
        if when_full is WhenFull.DROP_OLDEST:
            return DROPS_OLDEST
        if when_full is WhenFull.DROP_NEWEST or not publication.publish.qos:
            self._drop(publication.message)
            return DROPPED
        ticket = ticket_of(publication)
        if ticket.is_due:
            if self.fullness < DUE_SHARE:
                return None  # Nobody sends it again.
            self._drop_due(publication.message)
            return DROPPED
        if when_full is WhenFull.PAUSE and self.fullness < PAUSE_SHARE:
            if not ticket.is_unawaited:
                self._pause(ticket)
            return None
        self._refuse(ticket)
        return REFUSED

    def _refuse(self, ticket: Ticket) -> None:
        self._dropped("refused")
        ticket.withhold()

    def message_dropped(self) -> None:
        """See :meth:`QueueOwner.message_dropped`."""
        self._dropped("full")

    def _drop_due(self, message: Message) -> None:
        self._drop(message)
        more = self._pace.due()
        if more is not None:
            log.warn(
                "outbox {client_id!r} has twice what its bounds allow: a will or delayed message to {topic!r} is "
                "dropped{others}",
                client_id=self.client_id,
                topic=message.topic,
                others=and_others(more),
            )

    def _drop(self, message: Message) -> None:
        overflow.drop(self._runtime, self, message)

    # Publishers that wait

    def _pause(self, ticket: Ticket) -> None:
        """Let a publisher wait for its acknowledgement, and meanwhile read nothing from it."""
        ticket.is_slow = True
        ticket.expect()
        limit_s = self.settings.pause_limit_s
        self._paused.append((self._runtime.clock.monotonic() + limit_s, ticket))
        if self._timer is None:
            self._timer = self._runtime.clock.later(limit_s, self._refuse_overdue)

    def _resume_publishers(self) -> None:
        self._resumes = False
        if self._paused and self.fullness <= ROOM_SHARE:
            self._settle(len(self._paused), accepted=True)

    def _refuse_overdue(self) -> None:
        self._timer = None
        now = self._runtime.clock.monotonic()
        overdue = 0
        for until, _ in self._paused:
            if until > now:
                break
            overdue += 1
        self._settle(overdue, accepted=False)
        if self._paused and self._timer is None:
            self._timer = self._runtime.clock.later(max(0.0, self._paused[0][0] - now), self._refuse_overdue)

    def _settle(self, count: int, accepted: bool) -> None:
        """Let so many publishers go on, or refuse their messages."""
        for _ in range(count):
            _, ticket = self._paused.popleft()
            if not accepted:
                ticket.withhold()
                self._dropped("overdue")
            ticket.settle()
        if not self._paused and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if count:
            self._runtime.turn.touch()

    @property
    def passed(self) -> int:
        """The number of the last message of QoS 0 that was handed out; it falls."""
        return self._passed

    @property
    def paused(self) -> int:
        """The number of messages whose publishers wait."""
        return len(self._paused)
