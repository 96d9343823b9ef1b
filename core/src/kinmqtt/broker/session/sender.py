"""Encodes the PUBLISH packets of a session for its client, and drops those that are too large for it."""

from __future__ import annotations

from typing import Any, Final

from kinmqtt.broker.buffers import SHARED_BYTES
from kinmqtt.broker.message.delivery import Delivery
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.session.owner import QueueOwner
from kinmqtt.broker.turn.turn_buffer import TurnBuffer
from kinmqtt.mqtt.aliases import OutgoingAliases
from kinmqtt.mqtt.packets import V5
from kinmqtt.mqtt.qos_state import written_id
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.values import Client

DUP: Final = 0x08


class PacketSender(QueueOwner):
    """Native base class of :class:`~kinmqtt.broker.session.session.Session`."""

    __slots__ = ("_aliases", "_resumed", "max_packet_bytes", "turn_buffer", "version")

    def __init__(self, runtime: Runtime, client: Client, epoch: int, persistent: bool) -> None:
        super().__init__(runtime, client, epoch, persistent)
        self.turn_buffer: TurnBuffer = runtime.offline
        """Collects QoS 0 packets: the connection's buffer, or one that counts them as dropped."""
        self.version = client.protocol_version
        self.max_packet_bytes: int | None = None
        """The largest packet that the client accepts; ``None`` for no limit."""
        self._aliases: OutgoingAliases | None = None
        self._resumed = False
        """Whether CONNACK has been sent: it is the first packet to the client (MQTT-3.2.0-1)."""

    def finished(self, delivery: Delivery) -> None:
        """Complete a delivery."""
        raise NotImplementedError

    @property
    def sort_key(self) -> int:
        """The key by which fan-outs sort the session: protocol version, and whether its packets are its own."""
        return (self.version == V5) << 1 | self.has_packets_of_its_own

    @property
    def has_packets_of_its_own(self) -> bool:
        """Whether packets are encoded for this client alone, not shared with others."""
        return self.max_packet_bytes is not None or self._aliases is not None

    def deliver_particular(self, publication: Publication, retain: bool, identifiers: tuple[int, ...]) -> None:
        """Send a QoS 0 message that is encoded for this client alone."""
        if not self._resumed:
            self._runtime.drop(self.client_id, publication.message, "offline")
            return
        if self.connection is not None and self.connection.congested:
            self._runtime.drop(self.client_id, publication.message, "outbound_buffer_full")
            return
        head, tail, payload = self._encode(publication, 0, retain, identifiers)
        if not self._fits(publication, len(head) + len(tail) + len(payload)):
            self._runtime.drop(self.client_id, publication.message, "packet_too_large")
            return
        if payload:
            self._send_now(head + tail, payload)
        else:
            self._send_now(head, tail)
        self._runtime.statistics.messages_sent.value += 1
        self._notify_delivered(publication)

    def transmit(self, packet_id: int, delivery: Delivery) -> None:
        """Send a delivery with this packet identifier, if there is a connection and it is still in flight."""
        delivery.committed = True
        if self._resumed and self.outgoing.flights.get(packet_id) is delivery:
            self._transmit(packet_id, delivery)

    # Within

    def _transmit(self, packet_id: int, delivery: Delivery) -> None:
        """Encode and send a delivery that is in flight, if there is a connection."""
        connection = self.connection
        if connection is None:
            return
        publication = delivery.publication
        head, tail, payload = self._encode(publication, delivery.qos, delivery.retain, delivery.identifiers)
        if self.max_packet_bytes is not None:
            size = len(head) + len(tail) + len(payload) + 2
            if not self._fits(publication, size):
                self._drop_too_large(packet_id, delivery)
                return
        if delivery.sent:
            head = bytes((head[0] | DUP,)) + head[1:]
        delivery.sent = True
        packets = self._runtime.turn.packets_for(connection.turn_buffer)
        packets += (head, written_id(packet_id), tail)
        if len(tail) >= SHARED_BYTES:
            self._runtime.turn.has_large = True
        if payload:
            packets.append(payload)
            self._runtime.turn.has_large = True
        self._runtime.statistics.messages_sent.value += 1
        self._notify_delivered(publication)

    def _encode(
        self, publication: Publication, qos: int, retain: bool, identifiers: tuple[int, ...]
    ) -> tuple[bytes, bytes, bytes]:
        """Return the bytes before and after the packet identifier, and a large payload, which is not copied."""
        aliases = self._aliases
        if aliases is None and (self.version != V5 or (not identifiers and publication.expires_at is None)):
            head, tail = publication.parts(self.version, qos, retain)
            return head, tail, b""
        extra: dict[str, Any] = {"subscription_identifier": identifiers} if identifiers else {}
        topic = None
        used = None if aliases is None else aliases.use(publication.publish.topic)
        if used is not None:
            topic, extra["topic_alias"] = used
        properties = Properties(**extra) if extra else NO_PROPERTIES
        head, tail = publication.encode_start(self.version, qos, retain, properties, self._runtime.clock.now(), topic)
        payload = publication.payload
        return (head, tail, payload) if len(payload) >= SHARED_BYTES else (head, tail + payload, b"")

    def _fits(self, publication: Publication, size_bytes: int) -> bool:
        fits = self.max_packet_bytes is None or size_bytes <= self.max_packet_bytes
        if not fits and self._aliases is not None:
            self._aliases.forget(publication.publish.topic)
        return fits

    def _drop_too_large(self, packet_id: int, delivery: Delivery) -> None:
        """Drop a message as if it had been sent and acknowledged (MQTT-3.1.2-25)."""
        self.outgoing.forget(packet_id)
        self._runtime.drop(self.client_id, delivery.publication.message, "packet_too_large")
        self.finished(delivery)

    def _send_now(self, start: bytes, end: bytes) -> None:
        """Send a packet; a large ``end`` may be shared by many buffers, so it is not copied."""
        packets = self._runtime.turn.packets_for(self.turn_buffer)
        if len(end) >= SHARED_BYTES:
            self._runtime.turn.has_large = True
            packets.append(start)
            packets.append(end)
        else:
            packets.append(start + end)

    def _notify_delivered(self, publication: Publication) -> None:
        if self._runtime.notifies_delivered:
            self._runtime.hooks.delivered.about(publication.publish.topic, self.client, publication.message)
