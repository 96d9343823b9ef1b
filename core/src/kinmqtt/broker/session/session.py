"""One session (section 4.1): what a client has subscribed to, what is in flight to it, and what waits.

A session whose state ends with its connection keeps all of that here. One that outlives its connection is *kept*:
its queue is the queue store's, this object holds only what is in flight and a cursor into the store, and whatever
goes to its client goes after the commit. Both send through the same window.
"""

from __future__ import annotations

from typing import Final

from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session import overflow
from kinmqtt.broker.session.memory_queue import MemoryQueue
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
"""Stands for a message of which only the packet identifier is left; it is never sent."""

_NOTHING_LEFT: Final = Publication.of(_RELEASED)

LARGE_BYTES: Final = 16 << 10
"""In flight a message that counts for more is counted: the window bounds how much the others are."""

_LIGHT_BYTES: Final = 1024
"""A packet that is no larger is no large message: its properties take at most 13 times what they do on the wire."""

FLIGHT_BYTES: Final = 300
"""What a message in flight takes besides what it counts for where it waits: it is known here and in the store."""

INBOUND_BYTES: Final = 150
"""What the identifier of a QoS 2 message takes that its client has not released, here and in the store."""


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
        "username_unverified",
    )

    def __init__(
        self, runtime: Runtime, client: Client, epoch: int, expiry_s: int, persistent: bool | None = None
    ) -> None:
        """``persistent`` says whether it outlives its connection, where that is not plain from ``expiry_s``."""
        super().__init__(runtime, client, epoch, expiry_s > 0 if persistent is None else persistent)
        self.ending = False
        """Whether it is about to end: what others held for a shared subscription is not for it."""
        self.expiry_s = expiry_s
        self.queue: MemoryQueue | StoredQueue | ClosedQueue = (
            StoredQueue(runtime, self) if self.persistent else MemoryQueue(runtime, self)
        )
        self.created_at = runtime.clock.now()
        self.incoming = Incoming()
        self.sorted_by = -1
        """The sort key by which fan-outs hold the session."""
        self._resending = False
        self._unsent_inflight: dict[Delivery, int] | None = None
        """In flight before the connection, and not sent again yet: its window is narrower than the one before."""
        self.identify(client)

    def identify(self, client: Client) -> None:
        """Take what is known of the client that now uses the session."""
        self.client = client
        self.count_for(client.quota_key)
        self.username_unverified = False
        """Whether the user name is what CONNECT said when the session was stored: see ``StoredSession``."""
        self.receive_rights = None
        self.version = client.protocol_version
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        """Who publishes by this session; made when it first does."""
        if self._publisher is None:
            self._publisher = Publisher(self.client.client_id, self.client.username)
        return self._publisher

    # Connection

    def attach(
        self, connection: Peer, receive_maximum: int, max_packet_bytes: int | None, topic_aliases: int
    ) -> None:
        """A connection begins to use the session; nothing goes to it before :meth:`resume` (MQTT-3.2.0-1)."""
        self.connection = connection
        self._count_away(0)
        for _, delivery in self.outgoing:
            self._flies(delivery)
        if isinstance(self.queue, StoredQueue):
            self.queue.retrying = False
        limits = self._runtime.limits
        self.outgoing.attach(min(receive_maximum, limits.max_inflight), limits.max_queued_bytes)
        self.max_packet_bytes = max_packet_bytes
        self._aliases = OutgoingAliases(topic_aliases) if topic_aliases else None

    def detach(self) -> None:
        """The connection is gone: what is in flight stays so until it is sent again."""
        self.connection = None
        self.outgoing.detach()
        self._aliases = None
        self._resumed = False
        self._unsent_inflight = None
        self.outbox = self._runtime.offline
        if self.persistent:
            for _, delivery in self.outgoing:
                self._landed(delivery)
                delivery.publication.rest()
            self._count_away(self._inflight_bytes)
            self._drop_inflight()

    def end(self) -> None:
        """The session is over, and nothing waits for its client."""
        self.queue = self.queue.end()
        self.close_account()
        # Whoever still remembers this session must not keep its messages.
        self.outgoing.clear()

    def restore(self, state: QueueState) -> None:
        """Take what the queue store holds for this client: after a restart, a claim from another node, or where the
        store did not keep what was done since.
        """
        self.sequence = max(self.sequence, state.last_sequence)
        self.incoming.restore(state.inbound)
        self.outgoing.clear()
        self._count_large(0)
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
                self._flies(delivery)
        if self.connection is None:
            self._count_away(self._inflight_bytes)

    def resume(self) -> None:
        """The client has its CONNACK: send what is unacknowledged, in the old order (MQTT-4.4.0-1), then the rest."""
        connection = self.connection
        if connection is None:
            return
        self._resumed = True
        self.outbox = connection.outbox
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
        """Take out of the window what the client that is there now may not receive."""
        runtime = self._runtime
        if not runtime.hooks.authorize_receive.active or may_receive(runtime, self, delivery.publication.stored):
            return False
        self.outgoing.forget(packet_id)
        self.finished(delivery)
        return True

    # In flight

    def assign(self, delivery: Delivery) -> int:
        """Put a delivery in flight; answers its packet identifier."""
        publication = delivery.publication
        if not publication.frame_version or publication.packet_bytes > _LIGHT_BYTES:
            self._flies(delivery)
        return self.outgoing.assign(delivery)

    def released(self, delivery: Delivery) -> None:
        """PUBREC has come: of the message only its packet identifier is needed from here on."""
        if delivery.large_bytes:
            self._landed(delivery)
            self.wants_pump()
        self.outgoing.replace(delivery, _NOTHING_LEFT)

    def _flies(self, delivery: Delivery) -> None:
        """Count a delivery in flight to a client that is there, where it is a large one."""
        size_bytes = delivery.size_bytes
        if size_bytes > LARGE_BYTES:
            delivery.large_bytes = size_bytes
            self._count_large(self._large_bytes + size_bytes)

    def _landed(self, delivery: Delivery) -> None:
        """A delivery is no longer in flight, or nothing is left of it."""
        if delivery.large_bytes:
            self._count_large(self._large_bytes - delivery.large_bytes)
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
        """Bring a message of QoS 1 or 2 to the client, now or later; ``False`` if its queue refused it."""
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

    def forget(self, write: Append) -> None:
        """A new message was not kept: it is not this session's."""
        if write.packet_id is None:
            self.queue.leaves(write.entry.size_bytes)
        else:
            delivery = self.outgoing.flights.get(write.packet_id)
            if delivery is not None:
                self._landed(delivery)
            self.outgoing.forget(write.packet_id)

    def hand_on(self, packet_id: int, delivery: Delivery) -> None:
        """A delivery in flight goes to another member of its shared subscription: it is no longer this session's."""
        self.outgoing.forget(packet_id)
        self._landed(delivery)
        if self._away_bytes:
            self._count_away(max(0, self._away_bytes - FLIGHT_BYTES - delivery.size_bytes))
        if self.persistent:
            self._runtime.turn.batch.queue.append(make_write(Remove, (self.client_id, self.epoch, delivery.sequence)))

    def finished(self, delivery: Delivery) -> None:
        """A delivery is over: forget it in the store, and send what waited for its place."""
        if delivery.large_bytes:
            self._landed(delivery)
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
        """Have :meth:`pump` called when the turn ends."""
        if self.queue.count:
            self._runtime.turn.pump.append(self)

    def pump(self) -> None:
        """Send what waits, as far as the window goes."""
        if self.connection is not None and self.can_send:
            self.connection.capacity_available()
        self.queue.pump()

    @property
    def sizes(self) -> QueueSizes:
        """What waits and what is in flight."""
        return QueueSizes(self.queue.count, self.queue.size_bytes, len(self.outgoing), len(self.incoming.packet_ids))

    def expired_in_store(self, entry: Entry) -> None:
        """The queue store has removed a queued entry of its own accord."""
        if isinstance(self.queue, StoredQueue):
            self.queue.expired_in_store(entry)
        if self.connection is not None:
            self.connection.capacity_available()

    # Within

    @property
    def _inflight_bytes(self) -> int:
        flying = sum(FLIGHT_BYTES + delivery.size_bytes for _, delivery in self.outgoing)
        return flying + INBOUND_BYTES * len(self.incoming.packet_ids)

    def _drop_inflight(self) -> None:
        """Where its user, or all together, hold too much, what is in flight to who leaves gives way, newest first."""
        runtime = self._runtime
        if not self.queue.all_hold_too_much():
            return
        for packet_id, delivery in reversed(list(self.outgoing)):
            if delivery.stage is FlightStage.PUBCOMP:
                continue  # Nothing is left of its message.
            self.hand_on(packet_id, delivery)
            overflow.drop(runtime, self, delivery.publication.message)
            if not self.queue.all_hold_too_much():
                return

    def _resend(self) -> None:
        """Send again what was in flight, as far as the window of this connection goes (MQTT-3.3.4-9)."""
        unsent = self._unsent_inflight
        if self._resending or unsent is None:
            return  # What is too large is settled at once, and settling pays: once is enough.
        self._resending = True
        while unsent and len(self.outgoing) - len(unsent) < self.outgoing.window:
            delivery = next(iter(unsent))
            self.transmit(unsent.pop(delivery), delivery)
        self._resending = False

    @property
    def can_send(self) -> bool:
        """Whether the next message may go out now."""
        connection = self.connection
        if connection is None or not self._resumed or connection.congested or self.queue.retrying:
            return False
        return self.outgoing.has_capacity and not (self._large_bytes and self._flies_too_much)

    @property
    def _flies_too_much(self) -> bool:
        """Whether the next message must wait until large ones are acknowledged; one of those is sent in any case."""
        return self._large_bytes >= self._runtime.limits.max_inflight_bytes or self.queue.all_are_full()

    @property
    def has_no_capacity(self) -> bool:
        """Whether the next message of QoS 1 or 2 finds the queue full."""
        waiting = self.queue
        return waiting.is_full and (bool(waiting.count) or not self.can_send)


def expiry_moment(expiry_s: int, now: float) -> float | None:
    """When a session that is left at ``now`` expires; ``None`` for never."""
    return None if expiry_s == NEVER_EXPIRES else now + expiry_s
