"""One session (section 4.1): what a client has subscribed to, what is in flight to it, and what waits.

A session whose state ends with its connection keeps all of that here. One that outlives its connection is *kept*:
its queue is the queue store's, this object holds only what is in flight and a cursor into the store, and whatever
goes to its client goes after the commit. Both send through the same window.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kinmqtt.broker import full_queue
from kinmqtt.broker.delivery import Delivery
from kinmqtt.broker.full_queue import Fate
from kinmqtt.broker.outbox import Discard, Outbox
from kinmqtt.broker.patterns import Patterns
from kinmqtt.broker.publication import Publication
from kinmqtt.broker.receiving import may_receive
from kinmqtt.broker.settings import NEVER_EXPIRES
from kinmqtt.broker.waiting import Ended, WaitingHere, WaitingInStore
from kinmqtt.mqtt.aliases import OutgoingAliases
from kinmqtt.mqtt.packets import V5
from kinmqtt.mqtt.session import Incoming, Outgoing, Stage
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.services import queue
from kinmqtt_spi.services.queue import Append, Entry, QueueSizes, QueueState
from kinmqtt_spi.values import Client, Message, Publisher, Subscription, Will

if TYPE_CHECKING:
    from kinmqtt.broker.connection import Connection
    from kinmqtt.broker.runtime import Runtime

DUP: Final = 0x08

_RELEASED: Final = Message("released")
"""Stands for a message of which only the packet identifier is left; it is never sent."""


class Session:
    """The state of one client id, with or without a connection."""

    __slots__ = (
        "_aliases",
        "_away_bytes",
        "_owed",
        "_paying",
        "_publisher",
        "_resumed",
        "_runtime",
        "client",
        "connection",
        "created_at",
        "ending",
        "epoch",
        "expiry_s",
        "incoming",
        "kept",
        "max_packet_bytes",
        "out",
        "outgoing",
        "patterns",
        "receive_rights",
        "sequence",
        "sorted_by",
        "subscriptions",
        "version",
        "waiting",
        "will",
    )

    def __init__(self, runtime: Runtime, client: Client, epoch: int, expiry_s: int, kept: bool | None = None) -> None:
        """``kept`` says whether it outlives its connection, where that is not plain from ``expiry_s``."""
        self._runtime = runtime
        self.epoch = epoch
        self.ending = False
        """Whether it is about to end: what others held for a shared subscription is not for it."""
        self.expiry_s = expiry_s
        self.kept = expiry_s > 0 if kept is None else kept
        """Whether the session outlives its connection, and so lives in the stores."""
        self.waiting: WaitingHere | WaitingInStore | Ended = (
            WaitingInStore(runtime, self) if self.kept else WaitingHere(runtime, self)
        )
        self.created_at = runtime.clock.now()
        self.subscriptions: dict[str, Subscription] = {}
        """By filter, as the client wrote it."""
        self.patterns: Patterns | None = None
        """Those of the filters; absent in most sessions, whose filters add nothing to a match."""
        self.outgoing: Outgoing[Delivery] = Outgoing(runtime.limits.max_inflight)
        self.incoming = Incoming()
        self.will: Will | None = None
        self.connection: Connection | None = None
        self.out: Outbox = Discard(runtime.statistics, "offline")
        self.sequence = 0
        self.sorted_by = -1
        """The sort key by which fan-outs hold the session."""
        self._away_bytes = 0
        """What is in flight to a client that is away: nothing else bounds how much that is, of all together."""
        self._resumed = False
        self._paying = False
        self._owed: dict[Delivery, int] | None = None
        """In flight before the connection, and not sent again yet: its window is narrower than the one before."""
        self.max_packet_bytes: int | None = None
        self._aliases: OutgoingAliases | None = None
        self.identify(client)

    def identify(self, client: Client) -> None:
        """Take what is known of the client that now uses the session."""
        self.client = client
        self.receive_rights: dict[str, bool] | None = None
        """By topic: whether the client may receive it, where the only authorizer of deliveries said so for good."""
        self.version = client.protocol_version
        self._publisher: Publisher | None = None

    @property
    def publisher(self) -> Publisher:
        """Who publishes by this session; made when it first does."""
        if self._publisher is None:
            self._publisher = Publisher(self.client.client_id, self.client.username)
        return self._publisher

    @property
    def client_id(self) -> str:
        """The client id the session belongs to."""
        return self.client.client_id

    # Subscriptions

    def add_subscription(self, subscription: Subscription) -> bool:
        """Add or replace a subscription; ``True`` if it is new."""
        full_filter = subscription.full_filter
        new = full_filter not in self.subscriptions
        self.subscriptions[full_filter] = subscription
        if new and (self.patterns is not None or subscription.share_group or "+" in subscription.filter):
            if self.patterns is None:
                self.patterns = Patterns()
            self.patterns.add(subscription)
        return new

    def remove_subscription(self, full_filter: str) -> Subscription | None:
        """Remove a subscription; answers it, or ``None`` if there was none."""
        subscription = self.subscriptions.pop(full_filter, None)
        if subscription is not None and self.patterns is not None:
            self.patterns.remove(subscription)
        return subscription

    def match_steps_with(self, subscription: Subscription) -> int:
        """What all filters add to matching one message, at most, with one more of them."""
        patterns = self.patterns
        if patterns is None:
            patterns = Patterns()
        return patterns.steps + patterns.added_by(subscription)

    # Connection

    def attach(
        self, connection: Connection, receive_maximum: int, max_packet_bytes: int | None, topic_aliases: int
    ) -> None:
        """A connection begins to use the session; nothing goes to it before :meth:`resume` (MQTT-3.2.0-1)."""
        self.connection = connection
        self._count_away(0)
        if isinstance(self.waiting, WaitingInStore):
            self.waiting.retrying = False
        self.outgoing.window = min(receive_maximum, self._runtime.limits.max_inflight)
        self.max_packet_bytes = max_packet_bytes
        self._aliases = OutgoingAliases(topic_aliases) if topic_aliases else None

    @property
    def sort_key(self) -> int:
        """What fan-outs sort the session by: the version of its packets, and whether they are made for it alone."""
        return (self.version == V5) << 1 | self.has_packets_of_its_own

    @property
    def has_packets_of_its_own(self) -> bool:
        """Whether the bytes sent to this client are not those sent to others."""
        return self.max_packet_bytes is not None or self._aliases is not None

    def detach(self) -> None:
        """The connection is gone: what is in flight stays so until it is sent again."""
        self.connection = None
        self._aliases = None
        self._resumed = False
        self._owed = None
        self.out = Discard(self._runtime.statistics, "offline")
        if self.kept:
            self._count_away(self._inflight_bytes)
            self._shed()

    def end(self) -> None:
        """The session is over, and nothing waits for its client."""
        self._count_away(0)
        self.waiting = self.waiting.end()
        # Whoever still remembers this session must not keep its messages.
        self.outgoing.clear()

    def restore(self, state: QueueState) -> None:
        """Take what the queue store holds for this client: after a restart, a claim from another node, or where the
        store did not keep what was done since.
        """
        self.sequence = max(self.sequence, state.last_sequence)
        self.incoming.restore(state.inbound)
        self.outgoing.clear()
        self._owed = None
        if isinstance(self.waiting, WaitingInStore):
            self.waiting.restore(state.sizes)
        for inflight in state.inflight:
            entry = inflight.entry or Entry(inflight.sequence, _RELEASED, 2)
            delivery = Delivery.of(entry)
            delivery.committed = delivery.sent = True
            if inflight.stage is queue.Stage.RELEASED:
                delivery.stage = Stage.PUBCOMP
            self.outgoing.restore(inflight.packet_id, delivery)
        if self.connection is None:
            self._count_away(self._inflight_bytes)

    def resume(self) -> None:
        """The client has its CONNACK: send what is unacknowledged, in the old order (MQTT-4.4.0-1), then the rest."""
        connection = self.connection
        if connection is None:
            return
        self._resumed = True
        self.out = connection.out
        owed: dict[Delivery, int] = {}
        for packet_id, delivery in list(self.outgoing):
            if delivery.stage is Stage.PUBCOMP:
                connection.send(bytes((0x62, 2)) + packet_id.to_bytes(2, "big"))
            elif delivery.committed and not self._is_denied(packet_id, delivery):
                owed[delivery] = packet_id
        if owed:
            self._owed = owed
            self._pay()
        self.wants_pump()

    def _is_denied(self, packet_id: int, delivery: Delivery) -> bool:
        """Take out of the window what the client that is there now may not receive."""
        runtime = self._runtime
        if not runtime.hooks.authorize_receive.active or may_receive(runtime, self, delivery.publication.stored):
            return False
        self.outgoing.forget(packet_id)
        self.settled(delivery)
        return True

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
        waiting = self.waiting
        waits = bool(waiting.count) or not self.can_send
        fate = waiting.fate_of(publication) if waits else None
        if fate is not None and not fate.is_queued:
            return fate is not Fate.REFUSED
        if type(waiting) is WaitingHere:
            delivery = Delivery(publication, qos, retain, identifiers, 0, shared_filter)
            if waits:
                waiting.add(delivery, fate)
            else:
                self.transmit(self.outgoing.assign(delivery), delivery)
            return True
        if isinstance(waiting, Ended):
            return True
        self.sequence = sequence = self.sequence + 1
        entry = Entry(sequence, publication.stored, qos, retain, identifiers, shared_filter)
        if waits:
            waiting.add(entry, publication, fate)
            self.wants_pump()
            return True
        delivery = Delivery(publication, qos, retain, identifiers, sequence, shared_filter)
        packet_id = self.outgoing.assign(delivery)
        waiting.cursor = sequence
        batch = self._runtime.turn.batch
        batch.queue.append(queue.Append(self.client.client_id, self.epoch, entry, packet_id))
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

    def forget(self, write: Append) -> None:
        """A new message was not kept: it is not this session's."""
        if write.packet_id is None:
            self.waiting.leaves(write.entry.message)
        else:
            self.outgoing.forget(write.packet_id)

    def hand_on(self, packet_id: int, delivery: Delivery) -> None:
        """A delivery in flight goes to another member of its shared subscription: it is no longer this session's."""
        self.outgoing.forget(packet_id)
        if self._away_bytes:
            self._count_away(max(0, self._away_bytes - delivery.publication.stored.size_bytes))
        if self.kept:
            self._runtime.turn.batch.queue.append(queue.Remove(self.client_id, self.epoch, delivery.sequence))

    def settled(self, delivery: Delivery) -> None:
        """A delivery is over: forget it in the store, and send what waited for its place."""
        if self.kept:
            client_id = self.client.client_id
            self._runtime.turn.batch.queue.append(queue.Remove(client_id, self.epoch, delivery.sequence))
        if self._owed:
            self._owed.pop(delivery, None)
            self._pay()
        if self.waiting.count:
            self.wants_pump()
        elif self.connection is not None and self.connection.waits_for_room:
            self.connection.told_room()

    def wants_pump(self) -> None:
        """Have :meth:`pump` called when the turn ends."""
        if self.waiting.count:
            self._runtime.turn.pump.append(self)

    def pump(self) -> None:
        """Send what waits, as far as the window goes."""
        if self.connection is not None and self.can_send:
            self.connection.told_room()
        self.waiting.pump()

    @property
    def sizes(self) -> QueueSizes:
        """What waits and what is in flight."""
        return QueueSizes(
            self.waiting.count, self.waiting.size_bytes, len(self.outgoing), len(self.incoming.packet_ids)
        )

    def expired_in_store(self, entry: Entry) -> None:
        """The queue store has removed a queued entry of its own accord."""
        if isinstance(self.waiting, WaitingInStore):
            self.waiting.expired_in_store(entry)
        if self.connection is not None:
            self.connection.told_room()

    # Within

    @property
    def _inflight_bytes(self) -> int:
        return sum(delivery.publication.stored.size_bytes for _, delivery in self.outgoing)

    def _count_away(self, size_bytes: int) -> None:
        """Count what is in flight among what waits for all clients together, while the client is away."""
        self._runtime.waiting.size_bytes += size_bytes - self._away_bytes
        self._away_bytes = size_bytes

    def _shed(self) -> None:
        """Where all clients together hold too much, what is in flight to one that leaves gives way, newest first."""
        runtime = self._runtime
        limit = runtime.limits.max_all_queued_bytes
        if runtime.waiting.size_bytes <= limit:
            return
        for packet_id, delivery in reversed(list(self.outgoing)):
            if delivery.stage is Stage.PUBCOMP:
                continue  # Nothing is left of its message.
            self.hand_on(packet_id, delivery)
            full_queue.drop(runtime, self, delivery.publication.message)
            if runtime.waiting.size_bytes <= limit:
                return

    def _pay(self) -> None:
        """Send again what was in flight, as far as the window of this connection goes (MQTT-3.3.4-9)."""
        owed = self._owed
        if self._paying or owed is None:
            return  # What is too large is settled at once, and settling pays: once is enough.
        self._paying = True
        while owed and len(self.outgoing) - len(owed) < self.outgoing.window:
            delivery = next(iter(owed))
            self.transmit(owed.pop(delivery), delivery)
        self._paying = False

    @property
    def can_send(self) -> bool:
        """Whether the next message may go out now."""
        connection = self.connection
        if connection is None or not self._resumed or connection.congested or self.waiting.retrying:
            return False
        return self.outgoing.has_room

    @property
    def has_no_room(self) -> bool:
        """Whether the next message of QoS 1 or 2 finds the queue full."""
        waiting = self.waiting
        return waiting.is_full and (bool(waiting.count) or not self.can_send)

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

    def _tell_delivered(self, publication: Publication) -> None:
        if self._runtime.tells_delivered:
            self._runtime.hooks.delivered.about(publication.publish.topic, self.client, publication.message)


def expiry_moment(expiry_s: int, now: float) -> float | None:
    """When a session that is left at ``now`` expires; ``None`` for never."""
    return None if expiry_s == NEVER_EXPIRES else now + expiry_s
