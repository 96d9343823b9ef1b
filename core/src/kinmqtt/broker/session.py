"""One session (section 4.1): what a client has subscribed to, what is in flight to it, and what waits.

A session whose state ends with its connection keeps all of that here. One that outlives its connection is *kept*:
its queue is the queue store's, this object holds only what is in flight and a cursor into the store, and whatever
goes to its client goes after the commit. Both send through the same window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker import full_queue
from kinmqtt.broker.awaiting import as_deferred
from kinmqtt.broker.full_queue import Fate
from kinmqtt.broker.outbox import Discard, Outbox
from kinmqtt.broker.publication import Publication
from kinmqtt.broker.settings import NEVER_EXPIRES
from kinmqtt.mqtt.aliases import OutgoingAliases
from kinmqtt.mqtt.packets import V5
from kinmqtt.mqtt.session import Incoming, Outgoing, Stage
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.queue import Entry, QueueSizes, QueueState
from kinmqtt_spi.values import Client, Message, Publisher, Subscription, Will

if TYPE_CHECKING:
    from kinmqtt.broker.connection import Connection
    from kinmqtt.broker.runtime import Runtime

log = Logger("kinmqtt.session")

READ_AT_ONCE: Final = 128
"""Entries taken from a queue store in one read."""

RETRY_S: Final = 1.0
"""How long a store that failed is left alone by a session."""

DUP: Final = 0x08

_RELEASED: Final = Message("released")
"""Stands for a message of which only the packet identifier is left; it is never sent."""


class Delivery:
    """One message on its way to one client with QoS 1 or 2."""

    __slots__ = (
        "committed",
        "identifiers",
        "publication",
        "qos",
        "queued",
        "retain",
        "sent",
        "sequence",
        "share_group",
        "stage",
    )

    def __init__(
        self,
        publication: Publication,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...],
        sequence: int,
        share_group: str | None = None,
    ) -> None:
        self.publication = publication
        self.qos = qos
        self.retain = retain
        self.identifiers = identifiers
        self.share_group = share_group
        """The shared subscription it comes by."""
        self.sequence = sequence
        """Its number in the queue store; 0 in a session that is not kept."""
        self.stage = Stage.PUBACK if qos == 1 else Stage.PUBREC
        self.queued = False
        """Whether it has waited in the queue store, and waits there still if it turns out that it can't be sent."""
        self.committed = False
        """Whether it may be sent: at once in a session that is not kept, else when the store has kept it."""
        self.sent = False
        """Whether it went out before: the next time it carries DUP (MQTT-3.3.1-1)."""


class Session:
    """The state of one client id, with or without a connection."""

    __slots__ = (
        "_aliases",
        "_evicted",
        "_expiring_at",
        "_full",
        "_owed",
        "_paying",
        "_reading",
        "_resumed",
        "_retrying",
        "_runtime",
        "_waiting",
        "backlog",
        "client",
        "connection",
        "created_at",
        "cursor",
        "epoch",
        "expiry_s",
        "incoming",
        "kept",
        "max_packet_bytes",
        "out",
        "outgoing",
        "particular",
        "publisher",
        "queued_bytes",
        "sequence",
        "subscriptions",
        "version",
        "will",
    )

    def __init__(self, runtime: Runtime, client: Client, epoch: int, expiry_s: int) -> None:
        self._runtime = runtime
        self.epoch = epoch
        self.expiry_s = expiry_s
        self.kept = expiry_s > 0
        """Whether the session outlives its connection, and so lives in the stores."""
        self.created_at = runtime.clock.now()
        self.subscriptions: dict[str, Subscription] = {}
        self.outgoing: Outgoing[Delivery] = Outgoing(runtime.limits.max_inflight)
        self.incoming = Incoming()
        self.will: Will | None = None
        self.connection: Connection | None = None
        self.out: Outbox = Discard(runtime.statistics, "offline")
        self.sequence = 0
        self.backlog = 0
        """Messages that wait, here or in the queue store."""
        self.queued_bytes = 0
        """Their topics and payloads."""
        self.cursor = 0
        self._reading = False
        self._resumed = False
        self._retrying = False
        """Whether the store could not do something, and time is to pass before it is asked again."""
        self._paying = False
        self._owed: dict[Delivery, int] = {}
        """In flight before the connection, and not sent again yet: its window is narrower than the one before."""
        self._waiting: deque[Delivery] | None = None
        self._expiring_at: float | None = None
        """The first moment at which something that waits here may have expired."""
        self._full: list[tuple[Fate, int, str]] = []
        """For newcomers that found the queue full: who is to give way, and their sequence number and topic."""
        self._evicted: set[int] = set()
        """Sequence numbers that gave way, and that a read may still show."""
        self.max_packet_bytes: int | None = None
        self._aliases: OutgoingAliases | None = None
        self.identify(client)

    def identify(self, client: Client) -> None:
        """Take what is known of the client that now uses the session."""
        self.client = client
        self.version = client.protocol_version
        self.publisher = Publisher(client.client_id, client.username)

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        return self.client.client_id

    # Connection

    def attach(
        self, connection: Connection, receive_maximum: int, max_packet_bytes: int | None, topic_aliases: int
    ) -> None:
        """A connection begins to use the session; nothing goes to it before :meth:`resume` (MQTT-3.2.0-1)."""
        self.connection = connection
        self._retrying = False
        self.outgoing.window = min(receive_maximum, self._runtime.limits.max_inflight)
        self.max_packet_bytes = max_packet_bytes
        self._aliases = OutgoingAliases(topic_aliases) if topic_aliases else None

    @property
    def has_packets_of_its_own(self) -> bool:
        """Whether the bytes sent to this client are not those sent to others."""
        return self.max_packet_bytes is not None or self._aliases is not None

    def detach(self) -> None:
        """The connection is gone: what is in flight stays so until it is sent again."""
        self.connection = None
        self._aliases = None
        self._resumed = False
        self._owed.clear()
        self.out = Discard(self._runtime.statistics, "offline")

    def restore(self, state: QueueState) -> None:
        """Take what the queue store holds for this client, after a restart or a claim from another node."""
        self.sequence = state.last_sequence
        self.incoming.packet_ids = set(state.inbound)
        self.backlog = state.sizes.queued
        self.queued_bytes = state.sizes.queued_bytes
        for inflight in state.inflight:
            entry = inflight.entry or Entry(inflight.sequence, _RELEASED, 2)
            delivery = _delivery(entry)
            delivery.committed = delivery.sent = True
            if inflight.stage is queue.Stage.RELEASED:
                delivery.stage = Stage.PUBCOMP
            self.outgoing.restore(inflight.packet_id, delivery)

    def resume(self) -> None:
        """The client has its CONNACK: send what is unacknowledged, in the old order (MQTT-4.4.0-1), then the rest."""
        connection = self.connection
        if connection is None:
            return
        self._resumed = True
        self.out = connection.out
        for packet_id, delivery in self.outgoing:
            if delivery.stage is Stage.PUBCOMP:
                connection.send(bytes((0x62, 2)) + packet_id.to_bytes(2, "big"))
            elif delivery.committed:
                self._owed[delivery] = packet_id
        self._pay()
        self.wants_pump()

    # Delivery

    def deliver(
        self,
        publication: Publication,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        share_group: str | None = None,
    ) -> bool:
        """Bring a message of QoS 1 or 2 to the client, now or later; ``False`` if its queue refused it."""
        if not self.kept:
            return self._deliver_unkept(Delivery(publication, qos, retain, identifiers, 0, share_group))
        waits = bool(self.backlog) or not self._can_send
        fate = None
        if waits and self.is_full:
            fate = full_queue.decide(self._runtime, self, publication)
            if not fate.is_queued:
                return fate is not Fate.REFUSED
        self.sequence += 1
        entry = Entry(self.sequence, publication.stored, qos, retain, identifiers, share_group)
        batch = self._runtime.turn.batch
        if waits:
            if fate is not None:
                self._full.append((fate, self.sequence, publication.publish.topic))
            self.backlog += 1
            self.queued_bytes += entry.message.size_bytes
            batch.queue.append(queue.Append(self.client_id, self.epoch, entry))
            batch.queued.append((self, publication))
            if self._runtime.hooks.message_queued.active:
                batch.afterwards.append(partial(self._tell_queued, publication))
            self.wants_pump()
            return True
        delivery = Delivery(publication, qos, retain, identifiers, self.sequence, share_group)
        packet_id = self.outgoing.assign(delivery)
        self.cursor = self.sequence
        batch.queue.append(queue.Append(self.client_id, self.epoch, entry, packet_id))
        batch.sends.append((self, packet_id, delivery))
        return True

    def deliver_particular(self, publication: Publication, retain: bool, identifiers: tuple[int, ...]) -> None:
        """Send a QoS 0 message whose bytes this client does not share with others."""
        if not self._resumed:
            self._runtime.drop(self.client_id, publication.message, "offline")
            return
        if self.connection is not None and self.connection.congested:
            self._runtime.drop(self.client_id, publication.message, "outbound_buffer_full")
            return
        head, tail = self._encode(publication, 0, retain, identifiers)
        if not self._fits(publication, len(head) + len(tail)):
            self._runtime.drop(self.client_id, publication.message, "packet_too_large")
            return
        self._send_now(head + tail)
        self._runtime.statistics.messages_sent.value += 1
        self._tell_delivered(publication)

    def transmit(self, packet_id: int, delivery: Delivery) -> None:
        """Send a delivery that has its packet identifier; nothing happens while there is no connection."""
        delivery.committed = True
        connection = self.connection
        if connection is None or not self._resumed or self.outgoing.flights.get(packet_id) is not delivery:
            return
        publication = delivery.publication
        head, tail = self._encode(publication, delivery.qos, delivery.retain, delivery.identifiers)
        if self.max_packet_bytes is not None and not self._fits(publication, len(head) + len(tail) + 2):
            self._too_large(packet_id, delivery)
            return
        if delivery.sent:
            head = bytes((head[0] | DUP,)) + head[1:]
        delivery.sent = True
        out = connection.out
        if not out:
            self._runtime.turn.dirty.append(out)
        out.extend((head, packet_id.to_bytes(2, "big"), tail))
        self._runtime.statistics.messages_sent.value += 1
        self._tell_delivered(publication)

    def untransmitted(self, packet_id: int, delivery: Delivery) -> None:
        """The store did not keep a delivery that was about to be sent: it never was."""
        if self.outgoing.flights.get(packet_id) is not delivery:
            return
        self.outgoing.forget(packet_id)
        if delivery.queued:
            self.cursor = min(self.cursor, delivery.sequence - 1)
            self.backlog += 1
            self.queued_bytes += delivery.publication.stored.size_bytes
            self._pump_later()
        else:
            self._runtime.drop(self.client_id, delivery.publication.message, "store_failed")

    def unqueued(self, publication: Publication) -> None:
        """The store did not keep a message that was to wait: it does not."""
        self._no_longer_waits(publication.message)
        self._runtime.drop(self.client_id, publication.message, "store_failed")

    def hand_on(self, packet_id: int, delivery: Delivery) -> None:
        """A delivery in flight goes to another member of its shared subscription: it is no longer this session's."""
        self.outgoing.forget(packet_id)
        if self.kept:
            self._runtime.turn.batch.queue.append(queue.Remove(self.client_id, self.epoch, delivery.sequence))

    def hand_on_waiting(self, delivery: Delivery) -> None:
        """The same for one that waits here."""
        self.waiting.remove(delivery)
        self._no_longer_waits(delivery.publication.stored)

    def hand_on_entry(self, entry: Entry) -> None:
        """The same for one that waits in the queue store."""
        self._no_longer_waits(entry.message)
        self._runtime.turn.batch.queue.append(queue.Remove(self.client_id, self.epoch, entry.sequence))

    def settled(self, delivery: Delivery) -> None:
        """A delivery is over: forget it in the store, and send what waited for its place."""
        if self.kept:
            self._runtime.turn.batch.queue.append(queue.Remove(self.client_id, self.epoch, delivery.sequence))
        if self._owed:
            self._owed.pop(delivery, None)
            self._pay()
        if self.backlog:
            self.wants_pump()
        elif self.connection is not None:
            self.connection.told_room()

    def wants_pump(self) -> None:
        """Have :meth:`pump` called when the turn ends."""
        if self.backlog:
            self._runtime.turn.pump.append(self)

    def pump(self) -> None:
        """Let those give way that are too many, and send what waits, as far as the window goes."""
        if self._full and not self._reading:
            self._make_room()
        if not self._can_send:
            return
        if self.connection is not None:
            self.connection.told_room()
        if not self.kept:
            self._pump_unkept()
        elif self.backlog and not self._reading:
            room = min(READ_AT_ONCE, self.outgoing.window - len(self.outgoing))
            self._read(room + len(self._evicted), self._take)

    @property
    def is_full(self) -> bool:
        """Whether no further message may wait."""
        limits = self._runtime.limits
        return self.backlog >= limits.max_queued_messages or self.queued_bytes >= limits.max_queued_bytes

    @property
    def sizes(self) -> QueueSizes:
        """What waits and what is in flight."""
        return QueueSizes(self.backlog, self.queued_bytes, len(self.outgoing), len(self.incoming.packet_ids))

    @property
    def waiting(self) -> deque[Delivery]:
        """What waits in a session that is not kept."""
        if self._waiting is None:
            self._waiting = deque()
        return self._waiting

    def expired_in_store(self, message: Message) -> None:
        """The queue store has removed a queued entry of its own accord."""
        self._no_longer_waits(message)
        if self.connection is not None:
            self.connection.told_room()

    # Within

    def _pay(self) -> None:
        """Send again what was in flight, as far as the window of this connection goes (MQTT-3.3.4-9)."""
        if self._paying:
            return  # What is too large is settled at once, and settling pays: once is enough.
        self._paying = True
        owed = self._owed
        while owed and len(self.outgoing) - len(owed) < self.outgoing.window:
            delivery = next(iter(owed))
            self.transmit(owed.pop(delivery), delivery)
        self._paying = False

    @property
    def _can_send(self) -> bool:
        connection = self.connection
        return (
            connection is not None
            and self._resumed
            and not connection.congested
            and self.outgoing.has_room
            and not self._retrying
        )

    def _deliver_unkept(self, delivery: Delivery) -> bool:
        if not self.backlog and self._can_send:
            self.transmit(self.outgoing.assign(delivery), delivery)
            return True
        publication = delivery.publication
        if self.is_full:
            self._forget_expired()
        fate = full_queue.decide(self._runtime, self, publication) if self.is_full else None
        if fate is not None and not fate.is_queued:
            return fate is not Fate.REFUSED
        self.waiting.append(delivery)
        self.backlog += 1
        self.queued_bytes += publication.stored.size_bytes
        expires_at = publication.expires_at
        if expires_at is not None and (self._expiring_at is None or expires_at < self._expiring_at):
            self._expiring_at = expires_at
        if fate is not None:
            self._make_room_unkept(fate)
        self._tell_queued(publication)
        return True

    @property
    def _is_over(self) -> bool:
        """Whether more waits than may; the newest stays, however large it is."""
        limits = self._runtime.limits
        too_many = self.backlog > limits.max_queued_messages
        return too_many or (self.queued_bytes > limits.max_queued_bytes and self.backlog > 1)

    def _no_longer_waits(self, message: Message) -> None:
        self.backlog = max(0, self.backlog - 1)
        self.queued_bytes = max(0, self.queued_bytes - message.size_bytes)

    def _make_room_unkept(self, fate: Fate) -> None:
        waiting = self.waiting
        topic = waiting[-1].publication.publish.topic if fate is Fate.QUEUED_FOR_TOPIC else None
        while self._is_over:
            older = range(len(waiting) - 1)
            same = (n for n in older if waiting[n].publication.publish.topic == topic)
            position = 0 if topic is None else next(same, 0)
            message = waiting[position].publication.message
            del waiting[position]
            self._no_longer_waits(message)
            full_queue.drop(self._runtime, self, message)

    def _forget_expired(self) -> None:
        """Make room of what has expired while it waited."""
        now = self._runtime.clock.now()
        if self._expiring_at is None or now < self._expiring_at:
            return
        kept: deque[Delivery] = deque()
        for delivery in self.waiting:
            if delivery.publication.stored.has_expired(now):
                self._no_longer_waits(delivery.publication.stored)
                self._expired(delivery.publication)
            else:
                kept.append(delivery)
        self._waiting = kept
        moments = [d.publication.expires_at for d in kept if d.publication.expires_at is not None]
        self._expiring_at = min(moments, default=None)

    def _make_room(self) -> None:
        """Read the queue from its oldest entry on, as the turn's writes have left it, for those that give way."""
        by_topic = any(fate is Fate.QUEUED_FOR_TOPIC for fate, _, _ in self._full)
        limit = self.backlog if by_topic else max(READ_AT_ONCE, len(self._full))
        self._read(limit + len(self._evicted), self._evict)

    def _evict(self, found: Sequence[Entry]) -> None:
        full, self._full = self._full, []
        entries = [entry for entry in found if entry.sequence not in self._evicted and entry.sequence > self.cursor]
        victims: list[Entry] = []
        while self._is_over and entries:
            fate, sequence, topic = full.pop(0) if full else (Fate.QUEUED_FOR_OLDEST, self.sequence, "")
            candidates = (e for e in entries if e.sequence < sequence and e.message.topic == topic)
            same = next(candidates, None) if fate is Fate.QUEUED_FOR_TOPIC else None
            victim = same or entries[0]
            if victim.sequence == self.sequence:
                break
            if victim is entries[0]:
                self.cursor = victim.sequence
            entries.remove(victim)
            self._no_longer_waits(victim.message)
            victims.append(victim)
        batch = self._runtime.turn.batch
        for victim in victims:
            batch.queue.append(queue.Remove(self.client_id, self.epoch, victim.sequence))
            full_queue.drop(self._runtime, self, victim.message)
        if victims:
            numbers = {victim.sequence for victim in victims}
            self._evicted |= numbers
            batch.afterwards.append(lambda: self._evicted.difference_update(numbers))
            if self._is_over:
                self._full.append((Fate.QUEUED_FOR_OLDEST, self.sequence, ""))
                self.wants_pump()

    def _pump_unkept(self) -> None:
        waiting = self.waiting
        now = self._runtime.clock.now()
        while waiting and self._can_send:
            delivery = waiting.popleft()
            self._no_longer_waits(delivery.publication.stored)
            expires_at = delivery.publication.expires_at
            if expires_at is not None and now >= expires_at:
                self._expired(delivery.publication)
                continue
            self.transmit(self.outgoing.assign(delivery), delivery)

    def _read(self, limit: int, use: Callable[[Sequence[Entry]], None]) -> None:
        """Read the queue from the cursor on; one read at a time."""
        self._reading = True
        try:
            entries = self._runtime.stores.queue.read(self.client_id, self.cursor, limit)
        except Exception:
            self._read_failed(Failure())
            return
        if isinstance(entries, Awaitable):
            as_deferred(entries).addCallbacks(partial(self._read_later, use), self._read_failed)
        else:
            self._reading = False
            use(entries)

    def _read_later(self, use: Callable[[Sequence[Entry]], None], entries: Sequence[Entry]) -> None:
        self._reading = False
        use(entries)
        self.wants_pump()
        self._runtime.turn.touch()

    def _read_failed(self, failure: Failure) -> None:
        self._reading = False
        log.failure("the queue of {client_id!r} can't be read", failure, client_id=self.client_id)
        self._pump_later()

    def _pump_later(self) -> None:
        """Try again what the store could not do."""
        if not self._retrying:
            self._retrying = True
            self._runtime.clock.later(RETRY_S, self._pump_again)

    def _pump_again(self) -> None:
        self._retrying = False
        self.wants_pump()
        self._runtime.turn.touch()

    def _take(self, entries: Sequence[Entry]) -> None:
        batch = self._runtime.turn.batch
        now = self._runtime.clock.now()
        for entry in entries:
            if not self._can_send:
                break
            self.cursor = entry.sequence
            if entry.sequence in self._evicted:
                continue
            self._no_longer_waits(entry.message)
            delivery = _delivery(entry)
            if entry.message.has_expired(now):
                batch.queue.append(queue.Remove(self.client_id, self.epoch, entry.sequence))
                self._expired(delivery.publication)
                continue
            delivery.queued = True
            packet_id = self.outgoing.assign(delivery)
            batch.queue.append(queue.Send(self.client_id, self.epoch, entry.sequence, packet_id))
            batch.sends.append((self, packet_id, delivery))
        if entries and self.backlog and self._can_send:
            self.wants_pump()

    def _encode(
        self, publication: Publication, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> tuple[bytes, bytes]:
        aliases = self._aliases
        if aliases is None and (self.version != V5 or (not identifiers and publication.expires_at is None)):
            return publication.parts(self.version, qos, retain)
        extra: dict[str, Any] = {"subscription_identifier": identifiers} if identifiers else {}
        topic = None
        used = None if aliases is None else aliases.use(publication.publish.topic)
        if used is not None:
            topic, extra["topic_alias"] = used
        properties = Properties(**extra) if extra else NO_PROPERTIES
        return publication.encode(self.version, qos, retain, properties, self._runtime.clock.now(), topic)

    def _fits(self, publication: Publication, size_bytes: int) -> bool:
        fits = self.max_packet_bytes is None or size_bytes <= self.max_packet_bytes
        if not fits and self._aliases is not None:
            self._aliases.forget(publication.publish.topic)
        return fits

    def _too_large(self, packet_id: int, delivery: Delivery) -> None:
        """Behave as if the message had been sent and acknowledged (MQTT-3.1.2-25)."""
        self.outgoing.forget(packet_id)
        self._runtime.drop(self.client_id, delivery.publication.message, "packet_too_large")
        self.settled(delivery)

    def _send_now(self, packet: bytes) -> None:
        out = self.out
        if not out:
            self._runtime.turn.dirty.append(out)
        out.append(packet)

    def _expired(self, publication: Publication) -> None:
        self._runtime.drop(self.client_id, publication.message, "expired")
        if self._runtime.hooks.message_expired.active:
            self._runtime.hooks.message_expired(self.client_id, publication.message)

    def _tell_queued(self, publication: Publication) -> None:
        if self._runtime.hooks.message_queued.active:
            self._runtime.hooks.message_queued(self.client_id, publication.message)

    def _tell_delivered(self, publication: Publication) -> None:
        delivered = self._runtime.hooks.delivered
        if delivered.active:
            delivered.about(publication.publish.topic, self.client, publication.message)


def _delivery(entry: Entry) -> Delivery:
    publication = Publication.of(entry.message)
    return Delivery(publication, entry.qos, entry.retain, entry.identifiers, entry.sequence, entry.share_group)


def expiry_moment(expiry_s: int, now: float) -> float | None:
    """When a session that is left at ``now`` expires; ``None`` for never."""
    return None if expiry_s == NEVER_EXPIRES else now + expiry_s
