"""One network connection: runs the table of :mod:`kinmqtt.mqtt.connection_state` and carries out what it says.

Input goes down from here (session, publishing, router); what must come back (there is room, the client is taken over,
a turn has ended) is a call on the connection that was handed in. While an answer is waited for, what the client sends
next waits too, in order, and its socket is not read.
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
from kinmqtt.broker.turn.outbox import Outbox
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
        "asked",
        "authentication",
        "expiry_asked_s",
        "good_until",
        "keep_alive_s",
        "limited_by",
        "receive_maximum",
        "routes",
    )

    def __init__(self, services: Services, handlers: HandlerTable, link: Link) -> None:
        """``handlers`` is the table of what carries out each packet."""
        super().__init__(services, handlers, link)
        self._aborts = False
        """Whether the end of the connection does not wait until everything has gone out."""
        self.asked: Deferred[Any] | None = None
        """A plugin's answer about a client that is not accepted yet; it is cancelled when the connection is gone."""
        self._disconnect_reason: ReasonCode | None = None
        self.accepted_at = 0
        """The wheel's second in which the client was accepted."""
        self.keep_alive_s = 0
        self.expiry_asked_s = 0
        """The session expiry interval of CONNECT, whatever was made of it."""
        self.good_until: int | None = None
        """The wheel's second from which the client's identity no longer holds."""
        self.receive_maximum = self.limits.receive_maximum
        self.aliases: dict[int, str] | None = None
        self.routes: dict[bytes, TopicRoute] | None = None
        self.authentication: Authentication | None = None
        self.limited_by: set[str] | None = None
        """The rules and bounds by which something was refused, and which the log has named."""

    # What the transport tells

    def opened(self) -> None:
        """A connection was accepted: ask whether to talk to it, and give it its time to connect."""
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
        resource = Resource(ResourceKind.CONNECTION, link.listener.name, link.address.host)
        limit = self.acquire_for_good(resource)
        ruling = self.runtime.hooks.connection_opened.at_once(link.address, link.listener.name)
        if limit.verdict not in (LimitVerdict.ALLOW, LimitVerdict.DELAY):
            self._reject(f"limited by {limit.rule}")
            return
        if not ruling.decision.allowed:
            self._reject(ruling.decision.text or "a plugin refused it")
            return
        if limit.verdict is LimitVerdict.DELAY:
            self.pause_for(limit.delay_s)
        self.watch(ceil(self.limits.connect_time_limit_s) + 1)

    def drained(self) -> None:
        """The transport has sent everything."""
        self.runtime.turn.touch()
        self._is_taken()
        if self._unsent:
            self._send_on()
        self._has_sent()

    def lost(self, text: str) -> None:
        """The network connection is gone, from whichever side."""
        if self.gate.awaits_turn and self.state is not State.CLOSED:
            # What has come is carried out when its turn comes, as it is where nobody has to wait: a DISCONNECT, too.
            self._lost_because = text
            return
        if self._disconnect_reason is not None:
            self._finish_disconnect()
        elif self.state is not State.CLOSED:
            self.runtime.turn.touch()
            self._end(will_stands=self._is_accepted_client)
            if self.session is not None:
                self._report_lost(self.session, text)
        self._release_inbound()
        self._is_taken()
        self._forget_unsent()
        self.gate.forget()
        self.outbox = Outbox()
        self.services.lost(self)
        self.link.listener.connections -= 1
        self._packet_is_done()
        self._read_is_done()
        grants, self._lasting_grants = self._lasting_grants, None
        for resource, amount in grants or ():
            self.services.limiting.release(resource, amount)
        self._notify_capacity()

    # What limiters grant

    def watch(self, patience_s: int | None) -> None:
        """Be asked by the wheel in that many seconds, or when the client's identity is no longer good."""
        wheel = self.services.wheel
        wheel.remove(self, self._due)
        dues = [] if patience_s is None else [wheel.now + patience_s]
        if self.good_until is not None:
            dues.append(self.good_until)
        if self._packet_patience is not None:
            dues.append(self._packet_patience.due)
        self._due = wheel.add(self, min(dues)) if dues else 0

    def time_is_over(self, now: int) -> None:
        """The wheel's question: is the client still there, and still who it was? (MQTT-3.1.2-22)"""
        if self.state is State.CLOSED:
            return
        if self.session is None:
            self.fail(ReasonCode.MAXIMUM_CONNECT_TIME, "the client took too long to connect")
        elif self.good_until is not None and now >= self.good_until:
            self.fail(ReasonCode.NOT_AUTHORIZED, "the client's identity has expired")
        elif not self._packet_comes(now):
            self.fail(ReasonCode.QUOTA_EXCEEDED, "a packet took too long to arrive")
        elif not self.keep_alive_s:
            self.watch(None)
        else:
            silent_s = now - self.heard
            # Where nothing is read, it is the broker that does not listen.
            if silent_s < self.patience_s:
                self.watch(self.patience_s - silent_s)
            elif not self.gate.reasons:
                text = "nothing was heard for one and a half times the keep alive"
                self.fail(ReasonCode.KEEP_ALIVE_TIMEOUT, text)
            else:
                self.watch(self.patience_s)

    @property
    def patience_s(self) -> int:
        """One and a half times the keep alive, in whole seconds, and one more for the wheel's grain."""
        return self.keep_alive_s + (self.keep_alive_s + 1) // 2 + 1

    # Sending

    # Ending

    def fail(self, reason: ReasonCode, text: str, line: str = "") -> None:
        """Close from our side, with the reason where the protocol can carry it (section 4.13).

        ``line`` is how the line in the log begins, where it says more than that the connection is closed.
        """
        if self.state is State.CLOSED:
            return
        self.runtime.turn.touch()
        if self._disconnect_reason is not None:
            # The client has gone in good order: whatever comes now does not bring its will back (MQTT-3.14.4-3).
            self._finish_disconnect()
            return
        session = self.session
        self._log_end(reason, text, line)
        if self._is_accepted_client:
            if self.version == V5:
                fitting = fitting_for(reason, PacketType.DISCONNECT)
                self.send_packet(DisconnectPacket(fitting, self.problem(text)))
        elif self.version:
            self._send_refusal(reason, text)
        self._end(will_stands=self._is_accepted_client)
        if session is not None:
            hooks = self.runtime.hooks
            if hooks.disconnected.active:
                hooks.disconnected(session.client, False, reason)
            self._record_end(session, "broker", reason)
        self._close_now(linger=True)

    def refuse(self, error: RemoteError) -> None:
        """Close because the peer broke a rule."""
        self.runtime.statistics.remote_errors.value += 1
        text = f"{error.text} [{error.clause}]" if error.clause else error.text
        self.fail(error.reason, text)

    def start_disconnect(self, reason: ReasonCode) -> None:
        """A DISCONNECT came: nothing more is read, and what the client is owed for earlier packets still goes out."""
        self._disconnect_reason = reason
        self.gate.shut(DISCONNECTING)
        batch = self.runtime.turn.batch
        batch.after_commit.append(self._finish_disconnect)
        batch.on_commit_failed.append(lambda reason: self._finish_disconnect())

    def _finish_disconnect(self) -> None:
        """The client has what it is owed; the will stands only where the client said so (MQTT-3.14.4-3)."""
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
        """Close with nothing more to say than what was just sent."""
        if self.runtime.log_lines.may("closed"):
            log.info("{client} closed: {text}", client=self.name, text=text)
        self._end(will_stands=self._is_accepted_client)
        self._close_now(linger=True)

    def taken_over(self, by: Client | None) -> None:
        """Another connection has this client id now (MQTT-3.1.4-3)."""
        session = self.session
        self.fail(ReasonCode.SESSION_TAKEN_OVER, "the client id was taken over by another connection")
        hooks = self.runtime.hooks
        if session is not None and by is not None and hooks.session_taken_over.active:
            hooks.session_taken_over(by, session.client.address)

    # Waiting

    def use(self, session: Session) -> None:
        """The session is this connection's from here on."""
        self.session = session

    def accept(self) -> None:
        """The client is let in: packets may be larger from here on."""
        self.accepted_at = self.services.wheel.now
        self._count_accepted()
        self.gate.accept()
        self.gate.beyond = self.framer.allow(self.limits.max_packet_bytes) or None

    def enter(self, state: State) -> None:
        """Go to another state of the table."""
        if state not in TRANSITIONS[self.state]:
            raise LocalError(f"a connection can't go from {self.state.value} to {state.value}")
        self.state = state
        self._handlers = self._table.by_state[state]

    def count_routes(self) -> int:
        """Add up what the client has published since the last time; answers how many topics were looked at."""
        routes = self.routes
        if not routes or self.session is None:
            return 0
        self.services.traffic.add_all(self.session.client_id, routes.values())
        return len(routes)

    def forget_routes(self) -> None:
        """The rights or the fan-outs that are remembered hold no more."""
        if self.services.traffic.active:
            self.count_routes()
        self.routes = None

    def is_closed(self) -> bool:
        """Whether the connection has ended; what was begun for it must not go on."""
        return self.state is State.CLOSED

    def is_of(self, client_ids: Set[str]) -> bool:
        """Whether the connection belongs to one of some clients."""
        session = self.session
        return session is not None and session.client_id in client_ids

    def authorization_changed(self, scope: Scope) -> None:
        """Forget what authorizers answered, where the client is within a scope."""
        if self.session is not None and scope.covers(self.session.client):
            self.forget_routes()

    def watch_identity(self, identity: Identity) -> None:
        """Disconnect the client when its identity is no longer good; what held before holds no more."""
        self.good_until = None
        if identity.expires_at is not None:
            left_s = identity.expires_at - self.runtime.clock.now()
            self.good_until = self.services.wheel.now + max(1, int(left_s))
        if self.session is not None:
            self.watch(self.patience_s if self.keep_alive_s else None)

    @property
    def lasted_s(self) -> int:
        """For how many seconds the client has been connected."""
        return self.services.wheel.now - self.accepted_at

    @property
    def name(self) -> str:
        """For the log: the client id where there is one, and the address."""
        if self.session is None:
            return f"connection from {self.link.address}"
        return f"client {shown(self.session.client_id)} at {self.link.address}"

    def logs_first(self, bound: str) -> bool:
        """Whether the log has not named yet that rule or bound for this connection; from now on it has."""
        if self.limited_by is None:
            self.limited_by = set()
        if bound in self.limited_by:
            return False
        self.limited_by.add(bound)
        return True

    # Within

    @property
    def _is_accepted_client(self) -> bool:
        """Whether the client has its CONNACK: one that was refused leaves no will (section 3.1.2.5)."""
        return self.state in (State.CONNECTED, State.REAUTHENTICATING)

    def _reject(self, why: str) -> None:
        """Close before a byte is read: no packet has come that could be answered."""
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
        """What would be free if the connection ended: what has come, what waits, and what is in flight to a session
        that ends with it.
        """
        session = self.session
        held = self.inbound_bytes + self.waiting_bytes
        if session is not None and session.connection is self and not session.persistent:
            held += session.outgoing.size_bytes
        return held

    def cut(self) -> None:
        """Disconnect at once, for the sake of what is held for the client; what waits for its socket is forgotten."""
        # In the middle of a packet there is no place for a DISCONNECT.
        self._aborts = not self.link.ready or self._goes_on
        if self._aborts:
            self._forget_unsent()
        if self.state is State.CLOSED:
            self.link.abort()
        else:
            self.fail(ReasonCode.QUOTA_EXCEEDED, "memory is short, and this client holds much of it")

    def _end(self, will_stands: bool) -> None:
        self.enter(State.CLOSED)
        self._release_inbound()
        if self._impatience is not None:
            self._impatience.cancel()
        session = self.session
        if session is not None:
            self.services.sessions.connection_closed(session, self, will_stands)
        self.services.wheel.remove(self, self._due)
        self.forget_routes()
        self.aliases = None
        asked, self.asked = self.asked, None
        if asked is not None:
            asked.cancel()

    def _close_now(self, linger: bool = False) -> None:
        """Close; a client that has said who it is may still be writing, and has our last words to read then."""
        if self.state is not State.CLOSED:
            self.enter(State.CLOSED)
        if self._aborts:
            self.outbox.packets.clear()
            self.link.abort()
            return
        # What this turn has for the client goes out before the close.
        if self.outbox.packets:
            self.flush()
        self._send_rest()
        self.link.close(linger and self.version > 0)

    def _log_end(self, reason: ReasonCode, text: str, line: str) -> None:
        """A line about a connection that the broker ends."""
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
        self._record_end(session, "network", None)

    def _record_end(self, session: Session, by: str, reason: ReasonCode | None) -> None:
        events.record(
            self.runtime,
            EventKind.DISCONNECT,
            session.client_id,
            session.epoch,
            by=by,
            reason=None if reason is None else int(reason),
        )
