"""The acknowledgement of one PUBLISH, at once or when its ticket is settled (section 4.3)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final

from kinmqtt.broker.connection.held import HeldAcknowledgement
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.message.ticket import Ticket
from kinmqtt.broker.routing.routed import Routed
from kinmqtt.hooks.awaitables import as_deferred, run
from kinmqtt.mqtt.acknowledgements import success, with_reason
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.packets import V5, PacketType, Puback, Publish, Pubrec
from kinmqtt.mqtt.reasons import fitting
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services import queue
from kinmqtt_spi.values import MessageId

if TYPE_CHECKING:
    from kinmqtt.broker.connection.connection import Connection
    from kinmqtt.broker.session.session import Session

LONGEST_REASON_BYTES: Final = 100
"""Longest reason string in an acknowledgement."""

_SUCCESS: Final = ReasonCode.SUCCESS
_PUBACK: Final = PacketType.PUBACK
_PUBREC: Final = PacketType.PUBREC
_DELIVERED: Final = Routed.DELIVERED


class PublishAnswer(HeldAcknowledgement):
    """One PUBLISH whose message is acknowledged, refused, or held until its ticket is settled."""

    __slots__ = ("again", "connection", "packet", "publication", "routed", "session")

    def __init__(self, connection: Connection, session: Session, packet: Publish) -> None:
        super().__init__(None)
        self.connection = connection
        self.session = session
        self.packet = packet
        self.publication: Publication | None = None
        """The message for interceptors and routing; ``None`` until it is made."""
        self.again: MessageId | None = None
        """The message id under which it was forwarded before; ``None`` if it was not."""
        self.routed = _DELIVERED
        """What became of the message on this node, while answers are missing."""

    # Waiting

    def _then(self, pending: Awaitable[Any], proceed: Callable[[Any], object]) -> bool | None:
        """Call ``proceed`` with the pending answer; later packets of the client wait until then."""
        return self.connection.wait_for(run(self._wait(pending, proceed)))

    async def _wait(self, pending: Awaitable[Any], proceed: Callable[[Any], object]) -> None:
        answer = await as_deferred(pending)
        self.connection.runtime.turn.touch()
        proceed(answer)

    @property
    def _is_current(self) -> bool:
        """Whether the connection is open and still owns the session."""
        return self.connection.session is self.session and self.session.connection is self.connection

    # After routing

    def _routed_after_wait(self, routed: Routed) -> None:
        publication = self.publication
        if self.packet.qos and publication is not None and publication.ticket is not None:
            self._hold(publication, publication.ticket, routed)
        else:
            self._routed_later(routed)

    def _hold(self, publication: Publication, ticket: Ticket, routed: Routed) -> None:
        """Acknowledge the message when its ticket is settled: other nodes and outboxes have committed it.

        A QoS 2 identifier is stored as pending until then: a repeat is forwarded again, under the same message id.
        """
        self.routed = routed
        self.publication = publication
        if not ticket.pending:
            self._settled(ticket)
            return
        connection = self.connection
        packet = self.packet
        session = self.session
        batch = connection.runtime.turn.batch
        if packet.qos == 2:
            session.incoming.open(packet.packet_id)
            session.incoming.hold(packet.packet_id, publication.id)
            if session.tickets is None:
                session.tickets = {}
            session.tickets[packet.packet_id] = ticket
            if session.persistent:
                batch.queue.append(
                    queue.InboundOpen(session.client_id, session.epoch, packet.packet_id, publication.id)
                )
        # If this turn's writes fail to commit, the client must send the message again.
        batch.unfinished_publishers.append(connection)
        connection.hold_acknowledgement(self, ticket)

    def _hold_repeated(self, ticket: Ticket) -> None:
        """Let a repeated QoS 2 packet wait for the answers to the first one, once on each connection."""
        connection = self.connection
        if ticket.owner is connection:
            return
        connection.unacknowledged += 1
        connection.hold_acknowledgement(self, ticket)

    def release(self) -> None:
        """Acknowledge the message: its ticket is settled, and all earlier messages are acknowledged."""
        ticket, self.ticket = self.ticket, None
        if ticket is not None:
            self._settled(ticket)

    def _settled(self, ticket: Ticket) -> None:
        """Acknowledge the message, or not, as the answers were."""
        packet = self.packet
        session = self.session
        if packet.qos == 2 and session.tickets is not None and session.tickets.get(packet.packet_id) is ticket:
            del session.tickets[packet.packet_id]
            if ticket.failure is None:
                session.incoming.confirm(packet.packet_id)
        if ticket.failure is not None:
            if self._is_current:
                self.connection.withhold_acknowledgement(ticket.failure)
            return
        if ticket.is_withheld and self.connection.version != V5:
            self._withhold()
            return
        self._routed_later(Routed.REFUSED if ticket.is_refused else self.routed)

    def _withhold(self) -> None:
        """Disconnect a client of MQTT 3, which can't be told that its message is refused; it sends it again.

        The identifier of a QoS 2 message is stored as pending: sessions that have the message get it once.
        """
        session = self.session
        packet = self.packet
        if packet.qos == 2 and self.publication is not None:
            id = self.publication.id
            session.incoming.open(packet.packet_id)
            session.incoming.hold(packet.packet_id, id)
            if session.persistent:
                turn = self.connection.runtime.turn
                turn.batch.queue.append(queue.InboundOpen(session.client_id, session.epoch, packet.packet_id, id))
                turn.touch()
        if self._is_current:
            self.connection.fail(ReasonCode.QUOTA_EXCEEDED, "an outbox is full and refuses its message")

    def _routed_later(self, routed: Routed) -> None:
        packet = self.packet
        session = self.session
        connection = self.connection
        if packet.qos and session.connection is connection:
            self._routed(routed)
        elif packet.qos == 2 and routed in (Routed.REFUSED, Routed.NOT_RETAINED):
            session.incoming.forget(packet.packet_id)
        elif packet.qos == 2 and connection.services.sessions.get(session.client_id) is session:
            self._open_inbound()

    def _routed(self, routed: Routed) -> None:
        if routed is _DELIVERED:
            self._acknowledge(_SUCCESS)
        elif routed is Routed.REFUSED:
            publication = self.publication
            ticket = None if publication is None else publication.ticket
            full = "an outbox" if ticket is not None and ticket.is_withheld else "a subscriber's queue"
            self._refuse(ReasonCode.QUOTA_EXCEEDED, f"{full} is full")
        elif routed is Routed.NOT_RETAINED:
            self._refuse(ReasonCode.QUOTA_EXCEEDED, "there are too many retained messages")
        else:
            self._acknowledge(ReasonCode.NO_MATCHING_SUBSCRIBERS)

    # Acknowledgement

    def _acknowledge(self, reason: ReasonCode) -> None:
        """Acknowledge a message that was accepted or is treated as if it were."""
        packet = self.packet
        if not packet.qos:
            return
        connection = self.connection
        packet_type = _PUBACK if packet.qos == 1 else _PUBREC
        if packet.qos == 2:
            self._open_inbound()
        if reason is _SUCCESS or connection.version != V5:
            answer = success(packet_type, packet.packet_id)
        else:
            answer = with_reason(packet_type, packet.packet_id, reason)
        connection.acknowledge(answer, packet.qos == 1)

    def _open_inbound(self) -> None:
        """Record the identifier of an accepted QoS 2 message to detect duplicates; written with its deliveries."""
        session = self.session
        packet_id = self.packet.packet_id
        session.incoming.open(packet_id)
        if session.persistent:
            self.connection.runtime.turn.batch.queue.append(
                queue.InboundOpen(session.client_id, session.epoch, packet_id)
            )

    def _refuse(self, reason: ReasonCode, text: str) -> None:
        """Refuse the message. MQTT 3 has no negative acknowledgement: its clients get a positive one."""
        packet = self.packet
        if not packet.qos:
            return
        connection = self.connection
        if connection.version != V5:
            self._acknowledge(_SUCCESS)
            return
        packet_type = _PUBACK if packet.qos == 1 else _PUBREC
        reason = fitting(reason, packet_type, ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR)
        if packet.qos == 2:
            self._forget_identifier()
        connection.acknowledge(self._refusal(packet_type, reason, text), True)

    def _forget_identifier(self) -> None:
        """Forget the identifier of a refused QoS 2 message: the client may use it for a new one."""
        session = self.session
        packet_id = self.packet.packet_id
        if packet_id in session.incoming.packet_ids:
            session.incoming.forget(packet_id)
            if session.persistent:
                runtime = self.connection.runtime
                runtime.turn.batch.queue.append(queue.InboundClose(session.client_id, session.epoch, packet_id))
                runtime.turn.touch()

    def _refusal(self, packet_type: PacketType, reason: ReasonCode, text: str) -> bytes:
        """Returns an acknowledgement, with a reason string if the client wants it and it fits (MQTT-3.4.2-2)."""
        connection = self.connection
        packet_id = self.packet.packet_id
        properties = connection.reason_string(text.encode()[:LONGEST_REASON_BYTES].decode(errors="ignore"))
        if properties:
            made = encode((Puback if packet_type is _PUBACK else Pubrec)(packet_id, reason, properties), V5)
            session = connection.session
            limit = None if session is None else session.max_packet_bytes
            if limit is None or len(made) <= limit:
                return made
        return with_reason(packet_type, packet_id, reason)
