"""One network connection: runs the state machine of :mod:`kinmqtt.mqtt.connection_state`.

The connection calls the layers below it (session, publishing, router). They call back on the connection they were
given: capacity is available, the client was taken over, a turn has ended. While an answer is pending, later packets
of the client wait in order and its socket is not read.
"""

from __future__ import annotations

from collections.abc import Set
from math import ceil
from typing import TYPE_CHECKING, Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker import event_log as events
from kinmqtt.broker.connection import connection_log
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.read_gate import DISCONNECTING
from kinmqtt.broker.connection.writer import Writer, fitting_for
from kinmqtt.broker.session.session import expiry_moment
from kinmqtt.broker.turn.turn_buffer import TurnBuffer
from kinmqtt.hooks.denial_log import shown
from kinmqtt.mqtt.connection_state import TRANSITIONS, State
from kinmqtt.mqtt.errors import LocalError, RemoteError
from kinmqtt.mqtt.packets import V5, DisconnectPacket, PacketType
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Identity
from kinmqtt_spi.services.authorization import Scope
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.values import Client

if TYPE_CHECKING:
    from kinmqtt.broker.connection.authentication import Authentication
    from kinmqtt.broker.connection.handler_table import HandlerTable
    from kinmqtt.broker.connection.route import TopicRoute
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.session import Session

log = Logger("kinmqtt.connection")


class Connection(Writer):
    """The broker's side of one network connection."""

    __slots__ = (
        "_aborts",
        "_disconnect_reason",
        "accepted_at",
        "aliases",
        "authentication",
        "expiry_asked_s",
        "has_resumed",
        "identity_expires_at",
        "is_bridge",
        "keep_alive_s",
        "limited_by",
        "pending_answer",
        "receive_maximum",
        "routes",
    )

    def __init__(self, services: Services, handlers: HandlerTable, link: Link) -> None:
        """``handlers`` has the function that handles each packet."""
        super().__init__(services, handlers, link)
        self._aborts = False
        """Whether to close without sending the remaining output."""
        self.has_resumed = False
        """Whether CONNECT has found a session."""
        self.pending_answer: Deferred[Any] | None = None
        """A plugin's pending answer about a client that is not accepted yet; cancelled when the connection ends."""
        self._disconnect_reason: ReasonCode | None = None
        self.accepted_at = 0
        """When the client was accepted, in seconds of the timer wheel."""
        self.keep_alive_s = 0
        self.expiry_asked_s = 0
        """The session expiry interval of CONNECT, before limits and plugins changed it."""
        self.identity_expires_at: int | None = None
        """When the client's identity expires, in seconds of the timer wheel; ``None`` for never."""
        self.is_bridge = False
        """Whether it is a bridge of MQTT 3.1.1, see :class:`~kinmqtt.mqtt.packets.Connect`."""
        self.receive_maximum = self.limits.receive_maximum
        self.aliases: dict[int, str] | None = None
        self.routes: dict[bytes, TopicRoute] | None = None
        self.authentication: Authentication | None = None
        self.limited_by: set[str] | None = None
        """The rules and limits already logged for this connection: each is logged once."""

    # Events of the transport

    def opened(self) -> None:
        """Start a new connection: ask limiters and plugins whether to accept it, and start the CONNECT timer."""
        services = self.services
        link = self.link
        full = "there are too many connections" if services.is_full or link.listener.is_full else None
        if services.overload.refuses:
            full = "memory is short"
            self.runtime.statistics.overload_refused["connection"].value += 1
        services.connections.add(self)
        link.listener.connections += 1
        if full is not None:
            self._reject(full)
            return
        limit = self.acquire_for_good(Resource(ResourceKind.CONNECTION, link.listener.name, link.address.host))
        ruling = self.runtime.hooks.connection_opened.at_once(link.address, link.listener.name)
        if limit.verdict not in (LimitVerdict.ALLOW, LimitVerdict.DELAY):
            self._reject(f"limited by {limit.rule}")
            return
        if not ruling.decision.allowed:
            self._reject(ruling.decision.text or "rejected by a plugin")
            return
        if limit.verdict is LimitVerdict.DELAY:
            self.pause_for(limit.delay_s)
        self.watch(ceil(self.limits.connect_time_limit_s) + 1)

    def drained(self) -> None:
        """Send more of the waiting output: the transport has sent everything it had."""
        self.runtime.turn.touch()
        self._release_handed()
        if self._unsent:
            self._send_unsent()
        self._output_sent()

    def lost(self, text: str) -> None:
        """Clean up after the network connection was closed, by either side."""
        if self.gate.awaits_turn and self.state is not State.CLOSED:
            # Packets already received are handled in their turn first; one of them may be a DISCONNECT.
            self._lost_reason = text
            return
        self._handle_waiting_disconnect()
        if self._disconnect_reason is not None:
            self._finish_disconnect()
        elif self.state is not State.CLOSED:
            self.runtime.turn.touch()
            self._end(self._leaves_a_will)
            if self.session is not None:
                self._report_lost(self.session, text)
        self._release_inbound()
        self._release_handed()
        self._forget_unsent()
        self.gate.forget()
        self.turn_buffer = TurnBuffer()
        self.link.listener.connections -= 1
        self.services.lost(self)
        self._release_packet_grant()
        self._release_read_grant()
        grants, self._lasting_grants = self._lasting_grants, None
        for resource, amount in grants or ():
            self.services.limiting.release(resource, amount)
        self._notify_capacity()

    # Timers

    def watch(self, limit_s: int | None) -> None:
        """Set the connection's timer: after ``limit_s`` seconds, or when the identity or a packet's time ends."""
        wheel = self.services.wheel
        wheel.remove(self, self._due)
        dues = [] if limit_s is None else [wheel.now + limit_s]
        if self.identity_expires_at is not None:
            dues.append(self.identity_expires_at)
        if self._packet_deadline is not None:
            dues.append(self._packet_deadline.due)
        self._due = wheel.add(self, min(dues)) if dues else 0

    def time_is_over(self, now: int) -> None:
        """Check the keep alive (MQTT-3.1.2-22), the identity's expiry and the time limits of CONNECT and packets."""
        if self.state is State.CLOSED:
            return
        if self.session is None:
            self.fail(ReasonCode.MAXIMUM_CONNECT_TIME, "the client took too long to connect")
        elif self.identity_expires_at is not None and now >= self.identity_expires_at:
            self.fail(ReasonCode.NOT_AUTHORIZED, "the client's identity has expired")
        elif not self._packet_in_time(now):
            self.fail(ReasonCode.QUOTA_EXCEEDED, "a packet took too long to arrive")
        elif not self.keep_alive_s:
            self.watch(None)
        else:
            silent_s = now - self.heard
            # While the broker reads nothing, the client's silence proves nothing.
            if silent_s < self.keep_alive_limit_s:
                self.watch(self.keep_alive_limit_s - silent_s)
            elif not self.gate.reasons:
                text = "nothing was heard for one and a half times the keep alive"
                self.fail(ReasonCode.KEEP_ALIVE_TIMEOUT, text)
            else:
                self.watch(self.keep_alive_limit_s)

    @property
    def keep_alive_limit_s(self) -> int:
        """One and a half times the keep alive in whole seconds, plus one second for the timer wheel's resolution."""
        return self.keep_alive_s + (self.keep_alive_s + 1) // 2 + 1

    # Closing

    def fail(self, reason: ReasonCode, text: str, line: str = "") -> None:
        """Close from the broker's side, and send the reason where the protocol can carry it (section 4.13).

        ``line`` replaces the beginning of the log line, "NAME closed".
        """
        if self.state is State.CLOSED:
            return
        self.runtime.turn.touch()
        if self._disconnect_reason is not None:
            # After the client's DISCONNECT a later error must not restore its will (MQTT-3.14.4-3).
            self._finish_disconnect()
            return
        session = self.session
        self._log_end(reason, text, line)
        if self._is_accepted_client:
            if self.version == V5:
                fitting = fitting_for(reason, PacketType.DISCONNECT)
                self.send_packet(DisconnectPacket(fitting, self.reason_string(text)))
        elif self.version:
            self._send_refusal(reason, text)
        self._end(self._leaves_a_will)
        if session is not None:
            hooks = self.runtime.hooks
            if hooks.disconnected.active:
                hooks.disconnected(session.client, False, reason)
            self._record_end(session, "broker", reason)
        self._close_now(linger=True)

    def refuse(self, error: RemoteError) -> None:
        """Close because the client violated the protocol or a limit."""
        self.runtime.statistics.remote_errors.value += 1
        text = f"{error.text} [{error.clause}]" if error.clause else error.text
        self.fail(error.reason, text)

    def start_disconnect(self, reason: ReasonCode) -> None:
        """Handle DISCONNECT: stop reading, and close once the acknowledgements of earlier packets are sent."""
        self._disconnect_reason = reason
        self.gate.shut(DISCONNECTING)
        batch = self.runtime.turn.batch
        batch.after_commit.append(self._finish_disconnect)
        batch.on_commit_failed.append(lambda reason: self._finish_disconnect())

    def _handle_waiting_disconnect(self) -> None:
        """Handle a DISCONNECT behind packets that will not be handled: it deletes the will (MQTT-3.14.4-3)."""
        last = self.gate.last_waiting
        if last is None or not self._is_accepted_client or last[0][0] >> 4 != PacketType.DISCONNECT:
            return
        try:
            self._handlers[PacketType.DISCONNECT](self, *last)
        except RemoteError as error:
            self.refuse(error)

    def _finish_disconnect(self) -> None:
        """Close after DISCONNECT; the will is published only if the reason asks for it (MQTT-3.14.4-3)."""
        reason = self._disconnect_reason
        if reason is None or self.state is State.CLOSED:
            return
        session = self.session
        self._end(will_stands=reason is not ReasonCode.SUCCESS)
        if session is not None:
            self._log_disconnected(session, f"by the client (0x{reason:02X} {reason.name})")
            hooks = self.runtime.hooks
            if hooks.disconnected.active:
                hooks.disconnected(session.client, True, reason)
            self._record_end(session, "client", reason)
        self._close_now()

    def close(self, text: str) -> None:
        """Close without a further packet, after the output just sent."""
        if self.runtime.log_lines.may("closed"):
            log.info("{client} closed: {text}", client=self.name, text=text)
        self._end(self._leaves_a_will)
        self._close_now(linger=True)

    def taken_over(self, by: Client | None) -> None:
        """Disconnect because another connection uses this client id now (MQTT-3.1.4-3)."""
        session = self.session
        self._handle_waiting_disconnect()
        self.fail(ReasonCode.SESSION_TAKEN_OVER, "the client id was taken over by another connection")
        hooks = self.runtime.hooks
        if session is not None and by is not None and hooks.session_taken_over.active:
            hooks.session_taken_over(by, session.client.address)

    # State

    def use(self, session: Session) -> None:
        """Attach the session to this connection."""
        self.session = session

    def accept(self) -> None:
        """Mark the client as accepted: from now on ``max_packet_bytes`` limits its packets."""
        self.accepted_at = self.services.wheel.now
        self._count_accepted()
        self.gate.accept()
        self.gate.beyond = self.framer.allow(self.limits.max_packet_bytes) or None

    def enter(self, state: State) -> None:
        """Change the state; raises :class:`LocalError` for a transition that the table does not have."""
        if state not in TRANSITIONS[self.state]:
            raise LocalError(f"a connection can't go from {self.state.value} to {state.value}")
        self.state = state
        self._handlers = self._table.by_state[state]

    def count_routes(self) -> int:
        """Add the client's publishes since the last call to the traffic ledger; returns the number of topics."""
        routes = self.routes
        if not routes or self.session is None:
            return 0
        self.services.traffic.add_all(self.session.client_id, routes.values())
        return len(routes)

    def forget_routes(self) -> None:
        """Drop the cached rights and fan-outs of topics."""
        if self.services.traffic.active:
            self.count_routes()
        self.routes = None

    def is_closed(self) -> bool:
        """Whether the connection has ended; pending work for it must stop."""
        return self.state is State.CLOSED

    def is_of(self, client_ids: Set[str]) -> bool:
        """Whether the connection belongs to one of these clients."""
        return self.session is not None and self.session.client_id in client_ids

    def authorization_changed(self, scope: Scope) -> None:
        """Drop cached authorizer answers if the scope covers the client."""
        if self.session is not None and scope.covers(self.session.client):
            self.forget_routes()

    def watch_identity(self, identity: Identity) -> None:
        """Set the timer that disconnects the client when its identity expires, replacing an earlier one."""
        self.identity_expires_at = None
        if identity.expires_at is not None:
            left_s = identity.expires_at - self.runtime.clock.now()
            self.identity_expires_at = self.services.wheel.now + max(1, int(left_s))
        if self.session is not None:
            self.watch(self.keep_alive_limit_s if self.keep_alive_s else None)

    @property
    def lasted_s(self) -> int:
        """Seconds since the client was accepted."""
        return self.services.wheel.now - self.accepted_at

    @property
    def name(self) -> str:
        """The client id, if known, and the address, for the log."""
        if self.session is None:
            return f"connection from {self.link.address}"
        return f"client {shown(self.session.client_id)} at {self.link.address}"

    def first_to_log(self, bound: str) -> bool:
        """Returns whether this rule or limit is not logged yet for this connection, and marks it as logged."""
        if self.limited_by is None:
            self.limited_by = set()
        if bound in self.limited_by:
            return False
        self.limited_by.add(bound)
        return True

    # Within

    @property
    def _is_accepted_client(self) -> bool:
        """Whether the client got a successful CONNACK."""
        return self.state in (State.CONNECTED, State.REAUTHENTICATING)

    @property
    def _leaves_a_will(self) -> bool:
        """Whether the will stands if the connection ends now.

        A rejected client leaves none (section 3.1.2.5). But the session that it has resumed may have had one before,
        which no DISCONNECT has deleted.
        """
        return self._is_accepted_client or self.has_resumed

    def _reject(self, why: str) -> None:
        """Close a new connection before reading: there is no packet to answer."""
        self.runtime.statistics.connections_refused.value += 1
        if self.runtime.log_lines.may("refused"):
            log.info(
                "connection from {address} to {listener} refused: {why}",
                address=self.link.address,
                listener=self.link.listener.name,
                why=why,
            )
        self._close_now()

    @property
    def held_bytes(self) -> int:
        """Bytes freed if the connection ended: input, waiting output, and inflight of a non-persistent session."""
        session = self.session
        held = self.inbound_bytes + self.waiting_bytes
        if session is not None and session.connection is self and not session.persistent:
            held += session.outgoing.size_bytes
        return held

    def cut(self) -> None:
        """Disconnect at once to free memory, discarding the output that waits for the socket."""
        # A DISCONNECT can't be sent in the middle of another packet.
        self._aborts = not self.link.ready or self._continues_next_turn
        if self._aborts:
            self._forget_unsent()
        if self.state is State.CLOSED:
            self.link.abort()
        else:
            self.fail(ReasonCode.QUOTA_EXCEEDED, "memory is short and this client uses much of it")

    def _end(self, will_stands: bool) -> None:
        self.enter(State.CLOSED)
        self._release_inbound()
        if self._congestion_timer is not None:
            self._congestion_timer.cancel()
        session = self.session
        if session is not None:
            self.services.sessions.connection_closed(session, self, will_stands)
        self.services.wheel.remove(self, self._due)
        self.forget_routes()
        self.aliases = None
        asked, self.pending_answer = self.pending_answer, None
        if asked is not None:
            asked.cancel()

    def _close_now(self, linger: bool = False) -> None:
        """Close the link; with ``linger`` a client that has sent CONNECT gets time to read the last packets."""
        if self.state is not State.CLOSED:
            self.enter(State.CLOSED)
        if self._aborts:
            self.turn_buffer.packets.clear()
            self.link.abort()
            return
        # This turn's packets go out before the close.
        if self.turn_buffer.packets:
            self.flush()
        self._send_all_unsent()
        self.link.close(linger and self.version > 0)

    def _log_end(self, reason: ReasonCode, text: str, line: str) -> None:
        """Log that the broker closes the connection."""
        session = self.session
        if session is not None and self._is_accepted_client:
            self._log_disconnected(session, f"by the broker: {text} (0x{reason:02X} {reason.name})")
        elif self.runtime.log_lines.may("refused"):
            log.info(
                "{line}: {text} (0x{code:02X} {reason})",
                line=line or f"{self.name} closed",
                text=text,
                code=reason,
                reason=reason.name,
            )

    def _log_disconnected(self, session: Session, how: str) -> None:
        connection_log.disconnected(self.runtime.log_lines, session.client, self.lasted_s, how)

    def _report_lost(self, session: Session, text: str) -> None:
        self._log_disconnected(session, f"the connection was lost: {text}")
        hooks = self.runtime.hooks
        if hooks.connection_lost.active:
            hooks.connection_lost(session.client, text)
        expires_at = expiry_moment(session.expiry_s, self.runtime.now())
        events.record(
            self.runtime,
            EventKind.CONNECTION_LOST,
            session.client_id,
            session.epoch,
            username=session.client.username,
            expires_at=expires_at,
        )

    def _record_end(self, session: Session, by: str, reason: ReasonCode) -> None:
        events.record(
            self.runtime,
            EventKind.DISCONNECT,
            session.client_id,
            session.epoch,
            username=session.client.username,
            by=by,
            reason=int(reason),
            expires_at=expiry_moment(session.expiry_s, self.runtime.now()),
        )
