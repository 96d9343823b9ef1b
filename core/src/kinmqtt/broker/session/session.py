"""One session (section 4.1): the subscriptions, inflight messages and queue of a client id.

A non-persistent session has all its state here. A persistent session has its queue in the queue store; this object
has only the messages in flight and a cursor into the store, and sends after the commit. Both use the same inflight
window.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.memory_queue import MemoryQueue
from kinmqtt.broker.session.overflow_action import OverflowAction
from kinmqtt.broker.session.queue import ClosedQueue
from kinmqtt.broker.session.receive_rights import may_receive
from kinmqtt.broker.session.sender import PacketSender
from kinmqtt.broker.session.stored_queue import StoredQueue
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.mqtt.aliases import OutgoingAliases
from kinmqtt.mqtt.qos_state import FlightStage, Incoming, written_id
from kinmqtt.settings import NEVER_EXPIRES
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.queue import Append, Entry, QueueSizes, QueueState, Remove, make_write
from kinmqtt_spi.values import Client, Message, Publisher

_RELEASED: Final = Message("released")
"""Replaces a message of which only the packet identifier is needed; it is never sent."""

_NOTHING_LEFT: Final = Publication.of(_RELEASED)

LARGE_BYTES: Final = 16 << 10
"""A larger message is counted while in flight; the window limits the smaller ones."""

_LIGHT_BYTES: Final = 1024
"""A packet up to this size is never a large message: properties take at most 13 times their encoded size."""

FLIGHT_BYTES: Final = 300
"""The memory that a message in flight takes in addition to its queued size, here and in the store."""

INBOUND_BYTES: Final = 150
"""The memory that the identifier of an unreleased QoS 2 message takes, here and in the store."""


class Session(PacketSender):
    """The state of one client id, with or without a connection."""

    __slots__ = (
        "_publisher",
        "_resending",
        "_unsent_inflight",
        "created_at",
        "ending",
        "expiry_s",
        "incoming",
        "queue",
        "sorted_by",
        "tickets",
        "username_unverified",
    )

    def __init__(
        self, runtime: Runtime, client: Client, epoch: int, expiry_s: int, persistent: bool | None = None
    ) -> None:
        """``persistent``: whether it outlives its connection; by default if ``expiry_s`` (seconds) is above 0."""
        super().__init__(runtime, client, epoch, expiry_s > 0 if persistent is None else persistent)
        self.ending = False
        """Whether it is about to end: then it gets no messages that are redistributed from other sessions."""
        self.expiry_s = expiry_s
        self.queue: MemoryQueue | StoredQueue | ClosedQueue = (
            StoredQueue(runtime, self) if self.persistent else MemoryQueue(runtime, self)
        )
        self.created_at = runtime.clock.now()
        self.incoming = Incoming()
        self.tickets: dict[int, Ticket] | None = None
        """By packet identifier of a QoS 2 message: the answers of other nodes that it awaits."""
        self.sorted_by = -1
        """The sort key that fan-outs have for the session."""
        self._resending = False
        self._unsent_inflight: dict[Delivery, int] | None = None
        """Messages in flight from an earlier connection, not resent yet because the new window is smaller."""
        self.identify(client)

    def identify(self, client: Client) -> None:
        """Set the client that now uses the session, and reset what depends on it."""
        self.client = client
        self.count_for(client.quota_key)
        self.username_unverified = False
        """Whether the stored user name is the unverified one of CONNECT: see ``StoredSession``."""
        self.receive_rights = None
        self.version = client.protocol_version
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        """The client as a publisher; created on first use."""
        if self._publisher is None:
            self._publisher = Publisher(self.client.client_id, self.client.username)
        return self._publisher

    # Connection

    def attach(
        self, connection: Peer, receive_maximum: int, max_packet_bytes: int | None, topic_aliases: int
    ) -> None:
        """Attach a connection; nothing is sent to it before :meth:`resume` (MQTT-3.2.0-1)."""
        self.connection = connection
        self._count_offline_inflight(0)
        for _, delivery in self.outgoing:
            self._add_large_inflight(delivery)
        if isinstance(self.queue, StoredQueue):
            self.queue.retrying = False
        limits = self._runtime.limits
        self.outgoing.attach(min(receive_maximum, limits.max_inflight), limits.max_queued_bytes)
        self.max_packet_bytes = max_packet_bytes
        self._aliases = OutgoingAliases(topic_aliases) if topic_aliases else None

    def detach(self) -> None:
        """Detach the connection; messages in flight stay so until they are resent."""
        self.connection = None
        self.outgoing.detach()
        self._aliases = None
        self._resumed = False
        self._unsent_inflight = None
        self.turn_buffer = self._runtime.offline
        if self.persistent:
            for _, delivery in self.outgoing:
                self._remove_large_inflight(delivery)
                delivery.publication.rest()
            self._count_offline_inflight(self._inflight_bytes)
            self._drop_inflight()

    def end(self) -> None:
        """End the session, and discard its messages."""
        self.queue = self.queue.end()
        self.close_account()
        # A remaining reference to this session must not keep its messages in memory.
        self.outgoing.clear()

    def restore(self, state: QueueState) -> None:
        """Load the state of the queue store: after a restart, a claim from another node, or a failed commit."""
        self.sequence = max(self.sequence, state.last_sequence)
        self.incoming.restore(state.inbound, state.pending)
        self.outgoing.clear()
        self._count_large_inflight(0)
        self._unsent_inflight = None
        if isinstance(self.queue, StoredQueue):
            self.queue.restore(state.sizes)
        for inflight in state.inflight:
            entry = inflight.entry or Entry(inflight.sequence, _RELEASED, 2)
            delivery = Delivery.of(entry)
            delivery.committed = delivery.sent = True
            if inflight.stage is queue.Stage.RELEASED:
                delivery.stage = FlightStage.PUBCOMP
            self.outgoing.restore(inflight.packet_id, delivery)
            if self.connection is not None:
                self._add_large_inflight(delivery)
        if self.connection is None:
            self._count_offline_inflight(self._inflight_bytes)

    def resume(self) -> None:
        """After CONNACK, resend what is unacknowledged, in the original order (MQTT-4.4.0-1), then send the queue."""
        connection = self.connection
        if connection is None:
            return
        self._resumed = True
        self.turn_buffer = connection.turn_buffer
        unsent: dict[Delivery, int] = {}
        for packet_id, delivery in list(self.outgoing):
            if delivery.stage is FlightStage.PUBCOMP:
                connection.send(bytes((0x62, 2)) + written_id(packet_id))
            elif delivery.committed and not self._is_denied(packet_id, delivery):
                unsent[delivery] = packet_id
        if unsent:
            self._unsent_inflight = unsent
            self._resend()
        self.wants_pump()

    def _is_denied(self, packet_id: int, delivery: Delivery) -> bool:
        """Return whether the connected client may not receive a delivery; if so, remove it from the window."""
        runtime = self._runtime
        if not runtime.hooks.authorize_receive.active or may_receive(runtime, self, delivery.publication.stored):
            return False
        self.outgoing.forget(packet_id)
        self.finished(delivery)
        return True

    # In flight

    def assign(self, delivery: Delivery) -> int:
        """Put a delivery in flight; returns its packet identifier."""
        publication = delivery.publication
        if not publication.frame_version or publication.packet_bytes > _LIGHT_BYTES:
            self._add_large_inflight(delivery)
        return self.outgoing.assign(delivery)

    def released(self, delivery: Delivery) -> None:
        """Discard the message after PUBREC: only its packet identifier is still needed."""
        if delivery.large_bytes:
            self._remove_large_inflight(delivery)
            self.wants_pump()
        self.outgoing.replace(delivery, _NOTHING_LEFT)

    def _add_large_inflight(self, delivery: Delivery) -> None:
        """Count a delivery in flight to a connected client, if it is large."""
        size_bytes = delivery.size_bytes
        if size_bytes > LARGE_BYTES:
            delivery.large_bytes = size_bytes
            self._count_large_inflight(self._large_inflight_bytes + size_bytes)

    def _remove_large_inflight(self, delivery: Delivery) -> None:
        """Uncount a large delivery that has ended or whose message was discarded."""
        if delivery.large_bytes:
            self._count_large_inflight(self._large_inflight_bytes - delivery.large_bytes)
            delivery.large_bytes = 0

    # Delivery

    def deliver(
        self,
        publication: Publication,
        qos: int,
        retain: bool,
        identifiers: tuple[int, ...] = (),
        shared_filter: str | None = None,
    ) -> bool:
        """Send or queue a message of QoS 1 or 2; ``False`` if the queue refused it."""
        waiting = self.queue
        waits = bool(waiting.count) or not self.can_send
        action = waiting.overflow_action(publication) if waits else None
        if action is not None and not overflow.is_queued(action):
            return action is not overflow.REFUSED
        if type(waiting) is MemoryQueue:
            delivery = Delivery(publication, qos, retain, identifiers, 0, shared_filter)
            if waits:
                waiting.add(delivery, action)
            else:
                delivery.committed = True
                self._transmit(self.assign(delivery), delivery)
            return True
        if isinstance(waiting, ClosedQueue):
            return True
        self.sequence = sequence = self.sequence + 1
        entry: Entry = make_write(Entry, (sequence, publication.stored, qos, retain, identifiers, shared_filter))
        if waits:
            waiting.add(entry, publication, action)
            self.wants_pump()
            return True
        delivery = Delivery(publication, qos, retain, identifiers, sequence, shared_filter)
        packet_id = self.assign(delivery)
        waiting.cursor = sequence
        batch = self._runtime.turn.batch
        batch.queue.append(make_write(Append, (self.client.client_id, self.epoch, entry, packet_id)))
        batch.sends.append((self, packet_id, delivery))
        return True

    def drop_uncommitted(self, write: Append) -> None:
        """Remove a new message whose write was not committed."""
        if write.packet_id is None:
            self.queue.removed(write.entry.size_bytes)
        else:
            delivery = self.outgoing.flights.get(write.packet_id)
            if delivery is not None:
                self._remove_large_inflight(delivery)
            self.outgoing.forget(write.packet_id)

    def give_away(self, packet_id: int, delivery: Delivery) -> None:
        """Remove a delivery in flight that goes to another member of its shared subscription."""
        self.outgoing.forget(packet_id)
        self._remove_large_inflight(delivery)
        if self._offline_inflight_bytes:
            self._count_offline_inflight(max(0, self._offline_inflight_bytes - FLIGHT_BYTES - delivery.size_bytes))
        if self.persistent:
            self._runtime.turn.batch.queue.append(make_write(Remove, (self.client_id, self.epoch, delivery.sequence)))

    def finished(self, delivery: Delivery) -> None:
        """Complete a delivery: remove it from the store, and send what waited for its place in the window."""
        if delivery.large_bytes:
            self._remove_large_inflight(delivery)
        if self.persistent:
            client_id = self.client.client_id
            self._runtime.turn.batch.queue.append(make_write(Remove, (client_id, self.epoch, delivery.sequence)))
        if self._unsent_inflight:
            self._unsent_inflight.pop(delivery, None)
            self._resend()
        if self.queue.count:
            self.wants_pump()
        elif self.connection is not None and self.connection.waits_for_capacity:
            self.connection.capacity_available()

    def wants_pump(self) -> None:
        """Schedule :meth:`pump` for the end of the turn, if anything is queued."""
        if self.queue.count:
            self._runtime.turn.pump.append(self)

    def pump(self) -> None:
        """Send queued messages while the inflight window has capacity."""
        if self.connection is not None and self.can_send:
            self.connection.capacity_available()
        self.queue.pump()

    def overflow_action(self, publication: Publication, is_empty: bool) -> OverflowAction | None:
        """See :meth:`QueueOwner.overflow_action`: plugins or settings choose it."""
        return overflow.decide(self._runtime, self, publication, is_empty)

    @property
    def sizes(self) -> QueueSizes:
        """The numbers of queued and inflight messages."""
        return QueueSizes(self.queue.count, self.queue.size_bytes, len(self.outgoing), len(self.incoming.packet_ids))

    def expired_in_store(self, entry: Entry) -> None:
        """Uncount a queued entry that the queue store has expired."""
        if isinstance(self.queue, StoredQueue):
            self.queue.expired_in_store(entry)
        if self.connection is not None:
            self.connection.capacity_available()

    # Within

    @property
    def _inflight_bytes(self) -> int:
        outgoing_bytes = sum(FLIGHT_BYTES + delivery.size_bytes for _, delivery in self.outgoing)
        return outgoing_bytes + INBOUND_BYTES * len(self.incoming.packet_ids)

    def _drop_inflight(self) -> None:
        """Drop messages in flight, newest first, while the total limit or the user's share is exceeded."""
        runtime = self._runtime
        if not self.queue.total_exceeds_limit():
            return
        for packet_id, delivery in reversed(list(self.outgoing)):
            if delivery.stage is FlightStage.PUBCOMP:
                continue  # Its message has been discarded.
            self.give_away(packet_id, delivery)
            overflow.drop(runtime, self, delivery.publication.message)
            if not self.queue.total_exceeds_limit():
                return

    def _resend(self) -> None:
        """Resend what was in flight, up to the window of this connection (MQTT-3.3.4-9)."""
        unsent = self._unsent_inflight
        if self._resending or unsent is None:
            return  # Not reentrant: a message that is too large finishes at once, and `finished` calls this method.
        self._resending = True
        while unsent and len(self.outgoing) - len(unsent) < self.outgoing.window:
            delivery = next(iter(unsent))
            self.transmit(unsent.pop(delivery), delivery)
        self._resending = False

    @property
    def can_send(self) -> bool:
        """Whether the next message may be sent now."""
        connection = self.connection
        if connection is None or not self._resumed or connection.congested or self.queue.retrying:
            return False
        return self.outgoing.has_capacity and not (self._large_inflight_bytes and self._large_inflight_is_full)

    @property
    def _large_inflight_is_full(self) -> bool:
        """Whether the next message must wait for acknowledgements of large ones; one large message is always sent."""
        return self._large_inflight_bytes >= self._runtime.limits.max_inflight_bytes or self.queue.total_is_full()

    @property
    def has_no_capacity(self) -> bool:
        """Whether the next message of QoS 1 or 2 must be queued and the queue is full."""
        waiting = self.queue
        return waiting.is_full and (bool(waiting.count) or not self.can_send)


def expiry_moment(expiry_s: int, now: float) -> float | None:
    """Return when a session disconnected at ``now`` expires, in seconds since the epoch; ``None`` for never."""
    return None if expiry_s == NEVER_EXPIRES else now + expiry_s
