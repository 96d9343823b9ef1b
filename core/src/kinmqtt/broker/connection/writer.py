"""Packets to one client, and congestion if it reads too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import evolve
from twisted.internet.defer import Deferred

from kinmqtt.broker.connection.held import HeldAcknowledgement, HeldAcknowledgements
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.output import ConnectionBuffer
from kinmqtt.broker.connection.read_gate import CONGESTION, FORWARDING
from kinmqtt.broker.connection.reader import Reader
from kinmqtt.broker.message.ticket import Ticket, TicketOwner
from kinmqtt.broker.turn.recovery import attempt
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, Connack, Packet, PacketType
from kinmqtt.mqtt.reasons import fitting, has_connack_code
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Timer

if TYPE_CHECKING:
    from kinmqtt.broker.connection.handler_table import HandlerTable
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.session import Session


class HeldPacket(HeldAcknowledgement):
    """An acknowledgement that waits for those before it."""

    __slots__ = ("_completes", "_packet", "_writer")

    def __init__(self, writer: Writer, packet: bytes, completes: bool) -> None:
        super().__init__(None)
        self._writer = writer
        self._packet = packet
        self._completes = completes

    def release(self) -> None:
        """Send the acknowledgement when this turn's writes are committed."""
        self._writer.acknowledge(self._packet, self._completes)


class Writer(Reader, TicketOwner):
    """Sends packets to one client."""

    __slots__ = ("_congestion_timer", "held", "max_packet_bytes", "session", "unacknowledged", "wants_reason_strings")

    def __init__(self, services: Services, handlers: HandlerTable, link: Link) -> None:
        super().__init__(services, handlers, link)
        self.session: Session | None = None
        self.turn_buffer = ConnectionBuffer(self)
        self.max_packet_bytes: int | None = None
        """The largest packet that the client accepts; ``None`` for any."""
        self.wants_reason_strings = True
        """Whether reason strings may be sent in every packet (section 3.1.2.11.7)."""
        self.unacknowledged = 0
        """QoS 1 and 2 messages received and not acknowledged."""
        self.held: HeldAcknowledgements | None = None
        """Acknowledgements that wait for tickets; ``None`` if there are none."""
        self._congestion_timer: Timer | None = None
        """Disconnects a client that stays congested."""

    def send(self, packet: bytes) -> None:
        """Send a packet with this turn's output."""
        self.runtime.turn.packets_for(self.turn_buffer).append(packet)
        self.runtime.statistics.packets_sent.value += 1

    def send_packet(self, packet: Packet) -> bool:
        """Encode and send a packet, without reason string and user properties if they make it too large.

        Returns ``False`` if it is still too large and was not sent.
        """
        data = encode(packet, self.version)
        limit = self.max_packet_bytes
        if limit is not None and len(data) > limit:
            slim = _without_diagnostics(packet)
            data = encode(slim, self.version)
            if len(data) > limit:
                return False
        self.send(data)
        return True

    def acknowledge(self, packet: bytes, completes: bool) -> None:
        """Acknowledge a message when this turn's writes are committed, behind those that wait for tickets.

        ``completes`` as in :meth:`kinmqtt.broker.turn.turn.Turn.acknowledge`.
        """
        if self.held is None:
            self.runtime.turn.acknowledge(self, packet, completes=completes)
        else:
            self.held.add(HeldPacket(self, packet, completes))

    def hold_acknowledgement(self, acknowledgement: HeldAcknowledgement, ticket: Ticket) -> None:
        """Release an acknowledgement when its ticket is settled and all earlier messages are acknowledged.

        Reading stops while too many are held, or one waits for a node whose link has no credit: MQTT 3 has no
        receive maximum, and other nodes and outboxes may be slow.
        """
        held = self.held
        if held is None:
            held = self.held = HeldAcknowledgements()
        acknowledgement.ticket = ticket
        held.add(acknowledgement)
        earlier = ticket.owner
        if earlier is not None:
            # A repeated message: those behind the first one wait on the earlier connection.
            ticket.when_settled(earlier.release_held)
        ticket.owner = self
        if (held.slow or len(held) >= self.limits.receive_maximum) and not self.is_closed():
            self.gate.shut(FORWARDING)

    def release_held(self) -> None:
        """Acknowledge the messages that wait for nothing any more, in order."""
        held = self.held
        if held is None:
            return
        self.runtime.turn.touch()
        # What is acknowledged below has its turn: nothing is before it.
        self.held = None
        for acknowledgement in held.take():
            # Those behind it are answered, too.
            attempt(acknowledgement.release)
        if len(held):
            self.held = held
        if self.gate.reasons & FORWARDING and not held.slow and len(held) < self.limits.receive_maximum:
            self.gate.clear(FORWARDING)
            self._resume_reading()

    def send_acknowledgement(self, packet: bytes, completes: bool) -> None:
        """Send an acknowledgement that waited for a commit; ``completes``: it is the last one for its message."""
        if self.is_closed():
            return
        if completes and self.unacknowledged:
            # 0 for a PUBREL whose message came on an earlier connection: it was not counted here (section 4.9).
            self.unacknowledged -= 1
        self.send(packet)

    def withhold_acknowledgement(self, reason: ReasonCode) -> None:
        """Disconnect because a store did not commit a message: the client must send it again."""
        self.fail(reason, "a store did not commit the message")

    def flush(self) -> None:
        """Send this turn's packets now, before the turn ends."""
        self.turn_buffer.flush()

    def wait_for_capacity(self, messages: int) -> Deferred[None]:
        """Fires when the client can take about that many more messages, or is gone; usually in a later turn."""
        ready: Deferred[None] = Deferred()
        session = self.session
        if self.is_closed() or session is None:
            ready.callback(None)
            return ready
        if self.waits_for_capacity is None:
            self.waits_for_capacity = []
        self.waits_for_capacity.append((messages, ready))
        if self.link.ready and session.queue.count < messages:
            # This turn's output goes first: then the transport shows whether it is ready for more.
            self.runtime.slices.later(self._notify_capacity)
        return ready

    def capacity_available(self) -> None:
        """Notify those waiting for capacity that the session's queue became shorter."""
        if self.waits_for_capacity and self.link.ready:
            self._notify_capacity()

    def reason_string(self, text: str) -> Properties:
        """Returns properties with a reason string, empty if the client wants none (section 3.1.2.11.7)."""
        return Properties(reason_string=text) if text and self.wants_reason_strings else NO_PROPERTIES

    # Within

    def _output_sent(self) -> None:
        if self.congested and self.waiting_bytes <= self._outbound_limit:
            self._end_congestion()
        if self.waits_for_capacity and self.link.ready:
            self._notify_capacity()

    def _send_unsent_later(self) -> None:
        self.runtime.turn.dirty.append(self.turn_buffer)
        self.runtime.turn.touch()

    def _begin_congestion(self) -> None:
        """Drop QoS 0 messages, leave others in the session's queue, and stop reading until output is sent."""
        self.congested = True
        self.gate.shut(CONGESTION)
        self._congestion_timer = self.runtime.clock.later(
            self.limits.outbound_time_limit_s, self._disconnect_slow_client
        )
        if self.session is not None:
            self.runtime.slow_consumers.buffer_is_full(self.session.client, self.waiting_bytes)
            self.session.turn_buffer = self.runtime.congested

    def _disconnect_slow_client(self) -> None:
        if self.congested and not self.is_closed():
            self.fail(ReasonCode.QUOTA_EXCEEDED, "the client reads too slowly")

    def _end_congestion(self) -> None:
        self.congested = False
        self.gate.clear(CONGESTION)
        if self._congestion_timer is not None:
            self._congestion_timer.cancel()
        if self.session is not None and self.session.connection is self:
            self.session.turn_buffer = self.turn_buffer
            self.session.wants_pump()
        self._resume_reading()

    def _notify_capacity(self) -> None:
        """Notify those waiting for capacity whose messages fit now; all of them if the connection is gone."""
        session = self.session
        waiting, self.waits_for_capacity = self.waits_for_capacity, None
        for messages, ready in waiting or ():
            if session is None or self.is_closed() or session.queue.count < messages:
                ready.callback(None)
            elif self.waits_for_capacity is None:
                self.waits_for_capacity = [(messages, ready)]
            else:
                self.waits_for_capacity.append((messages, ready))

    def _send_refusal(self, reason: ReasonCode, text: str) -> None:
        """Send a CONNACK with a failure, to a client that is not accepted."""
        if reason in (ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SESSION_TAKEN_OVER):
            reason = ReasonCode.SERVER_UNAVAILABLE  # CONNACK has no 0x8B, nor 0x8E.
        elif reason < 0x80:
            reason = ReasonCode.UNSPECIFIED_ERROR  # A plugin may disconnect with 0x00, which would mean success.
        if self.version == V5:
            fitting = fitting_for(reason, PacketType.CONNACK)
            self.send_packet(Connack(False, fitting, self.reason_string(text)))
        elif has_connack_code(reason, self.version):
            self.send_packet(Connack(False, reason))


def fitting_for(reason: ReasonCode, packet_type: PacketType) -> ReasonCode:
    """Returns the reason if this packet type may carry it, else "unspecified error"."""
    if packet_type is PacketType.DISCONNECT and reason is ReasonCode.SERVER_UNAVAILABLE:
        return ReasonCode.SERVER_BUSY  # DISCONNECT has no 0x88; 0x89 also means: retry.
    return fitting(reason, packet_type, ReasonCode.UNSPECIFIED_ERROR)


def _without_diagnostics(packet: Packet) -> Packet:
    """Returns the packet without reason string and user properties (MQTT-3.2.2-19 and similar rules)."""
    properties = getattr(packet, "properties", NO_PROPERTIES)
    if not properties:
        return packet
    return evolve(packet, properties=properties.without("reason_string", "user_property"))  # type: ignore[misc]
