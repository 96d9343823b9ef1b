"""One network connection: runs the table of :mod:`kinmqtt.mqtt.connection_state` and carries out what it says.

Input goes down from here (session, publishing, router); what must come back (there is room, the client is taken over,
a turn has ended) is a call on the connection that was handed in. While an answer is waited for, what the client sends
next waits too, in order, and its socket is not read.
"""

from __future__ import annotations

from collections.abc import Set
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from attrs import evolve
from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker import event_log as events
from kinmqtt.broker.connection import connection_log
from kinmqtt.broker.connection.intake import Frame, Intake, PendingRead
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.output import ConnectionOutbox
from kinmqtt.broker.overload import SLOW_BYTES_PER_S, SLOWED_FROM_BYTES
from kinmqtt.broker.turn.outbox import Outbox
from kinmqtt.hooks.denial_log import shown
from kinmqtt.mqtt.codec import encode
from kinmqtt.mqtt.connection_state import TRANSITIONS, State, check_first_byte
from kinmqtt.mqtt.errors import LocalError, RemoteError
from kinmqtt.mqtt.packets import V5, Connack, Disconnect, Packet, PacketType
from kinmqtt.mqtt.reasons import fitting, has_connack_code
from kinmqtt_spi.properties import NO_PROPERTIES, Properties
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authentication import Identity
from kinmqtt_spi.services.authorization import Scope
from kinmqtt_spi.services.event import EventKind
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource, ResourceKind
from kinmqtt_spi.values import Client

if TYPE_CHECKING:
    from kinmqtt.broker.connection.authentication import Authentication
    from kinmqtt.broker.connection.handler_table import HandlerTable
    from kinmqtt.broker.connection.route import Route
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.session import Session
    from kinmqtt_spi.services.plugin import Timer

log = Logger("kinmqtt.connection")

READ_AHEAD_BYTES: Final = 65_536
"""Read of a client that is not accepted yet, behind its CONNECT, before it is read no more until it is."""

MANY_PIECES: Final = 16_384
"""So many answers to one read are not gathered until the turn ends."""

AWAITING_TURN_BYTES: Final = 128 << 10
"""Read of a client that awaits its turn before it is read no more until it has it."""

LARGE_READ_BYTES: Final = 256 << 10
"""Read of a packet that is larger still, before what follows may wait for another turn."""

SMALL_READ_BYTES: Final = 1024
"""A read that is cut and begun in the turn in which it comes, however much that turn has done."""

ASKS_AFTER: Final = 32
"""Packets carried out between two looks at the clock."""

Grant = tuple[Resource, int]
"""What limiters granted, and want to be told the end of."""


class Connection(Intake):
    """The broker's side of one network connection."""

    __slots__ = (
        "_aborts",
        "_awaits_turn",
        "_goodbye",
        "_handlers",
        "_impatience",
        "_lasting_grants",
        "_lost_because",
        "_packet_grant",
        "_read_ahead_bytes",
        "_read_grant",
        "_table",
        "_waits",
        "accepted_at",
        "aliases",
        "asked",
        "authentication",
        "expiry_asked_s",
        "good_until",
        "heard",
        "keep_alive_s",
        "limited_by",
        "limited_to",
        "max_packet_bytes",
        "receive_maximum",
        "routes",
        "session",
        "state",
        "unacknowledged",
        "version",
        "wants_problems",
    )

    def __init__(self, services: Services, handlers: HandlerTable, link: Link) -> None:
        """``handlers`` is the table of what carries out each packet."""
        super().__init__(services, link)
        self.state = State.AWAITING_CONNECT
        self._table = handlers
        self._handlers = handlers.by_state[State.AWAITING_CONNECT]
        self.version = 0
        """The protocol version; 0 until a CONNECT has named it."""
        self.session: Session | None = None
        self.outbox = ConnectionOutbox(self)
        self._aborts = False
        """Whether the end of the connection does not wait until everything has gone out."""
        self._lasting_grants: list[Grant] | None = None
        """Until the connection is gone: the connection itself, and its CONNECT."""
        self._read_grant: Grant | None = None
        """Until the PUBLISH packets of the read in hand are carried out."""
        self._packet_grant: Grant | None = None
        """Until the packet in hand is carried out: packets are carried out one by one."""
        self._waits = 0
        """How many things are waited for before the client's next packet."""
        self._awaits_turn = False
        """Whether nothing is waited for but a turn of the event loop."""
        self._read_ahead_bytes = 0
        """What was read while a plugin was asked about a client that is not accepted yet."""
        self.asked: Deferred[Any] | None = None
        """A plugin's answer about a client that is not accepted yet; it is cancelled when the connection is gone."""
        self._goodbye: ReasonCode | None = None
        self._lost_because: str | None = None
        """Why the network connection is gone, where what came by it before that is still to be carried out."""
        self._impatience: Timer | None = None
        self.heard = services.wheel.now
        """The wheel's second in which the client was last heard of."""
        self.accepted_at = 0
        """The wheel's second in which the client was accepted."""
        self.keep_alive_s = 0
        self.expiry_asked_s = 0
        """The session expiry interval of CONNECT, whatever was made of it."""
        self.good_until: int | None = None
        """The wheel's second from which the client's identity no longer holds."""
        self.unacknowledged = 0
        """QoS 1 and 2 messages taken from the client and not answered."""
        self.receive_maximum = self.limits.receive_maximum
        self.aliases: dict[int, str] | None = None
        self.routes: dict[bytes, Route] | None = None
        self.authentication: Authentication | None = None
        self.max_packet_bytes: int | None = None
        """The largest packet that the client takes."""
        self.wants_problems = True
        """Whether reason strings may go into every packet (section 3.1.2.11.7)."""
        self.limited_to: Resource | None = None
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
            self._turn_away(full)
            return
        resource = Resource(ResourceKind.CONNECTION, link.listener.name, link.address.host)
        limit = self.acquire_for_good(resource)
        ruling = self.runtime.hooks.connection_opened.at_once(link.address, link.listener.name)
        if limit.verdict not in (LimitVerdict.ALLOW, LimitVerdict.DELAY):
            self._turn_away(f"limited by {limit.rule}")
            return
        if not ruling.decision.allowed:
            self._turn_away(ruling.decision.text or "a plugin refused it")
            return
        if limit.verdict is LimitVerdict.DELAY:
            self.pause_for(limit.delay_s)
        self.watch(ceil(self.limits.connect_time_limit_s) + 1)

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.state is State.CLOSED:
            return
        services = self.services
        runtime = self.runtime
        runtime.turn.touch()
        received = runtime.statistics.bytes_received
        received.value += len(data)
        if received.value > services.overload.look_at:
            services.overload.look_soon()
        framer = self.framer
        is_waiting = self._held is not None
        if is_waiting:
            # It is cut when its turn comes.
            framer.hold(data)
            if not self._awaits_turn:
                self._read_ahead_bytes += len(data)
            if not self._reads_ahead:
                self.link.pause_reading()
            self._count_inbound(False)
            return
        slices = runtime.slices
        if not self.version:
            slices.hurry()
        may_wait = len(data) > SMALL_READ_BYTES or not self.version or slices.is_heavy or slices.is_flooded
        if may_wait and slices.is_over():
            # Many clients come at once, or send much: not each has its first packets carried out in one turn.
            framer.hold(data)
            if services.overload.slows:
                self.pause_for(len(data) / SLOW_BYTES_PER_S)
            self._await_turn()
            self._count_inbound(False)
            return
        was_large = framer.buffered_bytes > LARGE_READ_BYTES
        frames = self._cut(data)
        if services.overload.slows and len(data) >= SLOWED_FROM_BYTES:
            if framer.buffered_bytes or framer.is_behind or _has_publish(frames):
                self.pause_for(len(data) / SLOW_BYTES_PER_S)
        if was_large and frames and runtime.slices.is_over():
            # To read it, and to put it together, was enough for one turn.
            self._rest = PendingRead(frames, None, False)
            self._await_turn()
        elif frames:
            self._take_in(frames)
        else:
            self._look_at_rest()
        buffered_bytes = framer.buffered_bytes
        if buffered_bytes or self.inbound_bytes or self._held is not None:
            self._count_inbound(bool(frames))
            if buffered_bytes > LARGE_READ_BYTES:
                runtime.slices.hurry()
        if len(self.outbox.packets) > MANY_PIECES:
            # What a flood of small packets is answered with takes more in pieces than it has bytes.
            self.flush()

    def drained(self) -> None:
        """The transport has sent everything."""
        self.runtime.turn.touch()
        self._is_taken()
        if self._unsent:
            self._send_on()
        self._has_sent()

    def lost(self, text: str) -> None:
        """The network connection is gone, from whichever side."""
        if self._awaits_turn and self.state is not State.CLOSED:
            # What has come is carried out when its turn comes, as it is where nobody has to wait: a DISCONNECT, too.
            self._lost_because = text
            return
        if self._goodbye is not None:
            self._part()
        elif self.state is not State.CLOSED:
            self.runtime.turn.touch()
            self._end(will_stands=self._is_let_in)
            if self.session is not None:
                self._tell_lost(self.session, text)
        self._release_inbound()
        self._is_taken()
        self._forget_unsent()
        self._held = None
        self.outbox = Outbox()
        self.services.lost(self)
        self.link.listener.connections -= 1
        self._packet_is_done()
        self._read_is_done()
        grants, self._lasting_grants = self._lasting_grants, None
        for resource, amount in grants or ():
            self.services.limiting.release(resource, amount)
        self._tell_room()

    # What limiters grant

    def acquire_for_good(self, resource: Resource) -> LimitDecision:
        """Ask the limiters for something that is in use until the connection is gone."""
        limit = self.services.limiting.ask(resource, 1)
        if self.services.limiting.is_held(resource, limit):
            if self._lasting_grants is None:
                self._lasting_grants = []
            self._lasting_grants.append((resource, 1))
        return limit

    def acquire_for_packet(self, resource: Resource, amount: int) -> LimitDecision:
        """Ask the limiters for something that is in use until the packet in hand is carried out."""
        limit = self.services.limiting.ask(resource, amount)
        if self.services.limiting.is_held(resource, limit):
            self._packet_grant = (resource, amount)
        return limit

    def _packet_is_done(self) -> None:
        grant, self._packet_grant = self._packet_grant, None
        if grant is not None:
            self.services.limiting.release(*grant)

    def _read_is_done(self) -> None:
        grant, self._read_grant = self._read_grant, None
        if grant is not None:
            self.services.limiting.release(*grant)

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
            listening = self.is_listening and not self._awaits_capacity
            if silent_s < self.patience_s:
                self.watch(self.patience_s - silent_s)
            elif listening:
                text = "nothing was heard for one and a half times the keep alive"
                self.fail(ReasonCode.KEEP_ALIVE_TIMEOUT, text)
            else:
                self.watch(self.patience_s)

    @property
    def patience_s(self) -> int:
        """One and a half times the keep alive, in whole seconds, and one more for the wheel's grain."""
        return self.keep_alive_s + (self.keep_alive_s + 1) // 2 + 1

    # Sending

    def send(self, packet: bytes) -> None:
        """Send a packet with everything else of this turn."""
        outbox = self.outbox
        if not outbox.packets:
            self.runtime.turn.dirty.append(outbox)
        outbox.packets.append(packet)
        self.runtime.statistics.packets_sent.value += 1

    def send_packet(self, packet: Packet) -> bool:
        """Encode and send a packet; without reason string and user properties where those make it too large.

        ``False`` where it is too large all the same, and is not sent.
        """
        data = encode(packet, self.version)
        limit = self.max_packet_bytes
        if limit is not None and len(data) > limit:
            slim = _without_problems(packet)
            data = encode(slim, self.version)
            if len(data) > limit:
                return False
        self.send(data)
        return True

    def send_acknowledgement(self, packet: bytes) -> None:
        """Send an acknowledgement that waited for a commit."""
        if self.state is State.CLOSED:
            return
        sort = packet[0]
        if sort != _PUBREL and (sort != _PUBREC or (packet[1] > 2 and packet[4] >= 0x80)):
            # An identifier of an earlier connection may be released on this one (section 4.9): it was not counted.
            self.unacknowledged = max(0, self.unacknowledged - 1)
        self.send(packet)

    def withhold_acknowledgement(self, reason: ReasonCode) -> None:
        """A store did not keep what was to be acknowledged: the client must send it again."""
        self.fail(reason, "a store did not keep the message")

    def flush(self) -> None:
        """Hand this turn's packets to the transport before the turn's end."""
        self.outbox.flush()

    def _has_sent(self) -> None:
        if self.congested and self.waiting_bytes <= self._outbound_limit:
            self._relieve()
        if self.waits_for_room and self.link.ready:
            self._tell_room()

    def _send_on_later(self) -> None:
        self.runtime.turn.dirty.append(self.outbox)
        self.runtime.turn.touch()

    def room(self, messages: int) -> Deferred[None]:
        """Fires when the client can take about that many messages more, or is gone; in a later turn, as a rule."""
        ready: Deferred[None] = Deferred()
        session = self.session
        if self.state is State.CLOSED or session is None:
            ready.callback(None)
            return ready
        if self.waits_for_room is None:
            self.waits_for_room = []
        self.waits_for_room.append((messages, ready))
        if self.link.ready and session.waiting.count < messages:
            # What this turn has for it goes out before: then the transport says whether it is enough.
            self.runtime.slices.later(self._tell_room)
        return ready

    def told_room(self) -> None:
        """The session's queue has become shorter."""
        if self.waits_for_room and self.link.ready:
            self._tell_room()

    # Ending

    def fail(self, reason: ReasonCode, text: str, line: str = "") -> None:
        """Close from our side, with the reason where the protocol can carry it (section 4.13).

        ``line`` is how the line in the log begins, where it says more than that the connection is closed.
        """
        if self.state is State.CLOSED:
            return
        self.runtime.turn.touch()
        if self._goodbye is not None:
            # The client has gone in good order: whatever comes now does not bring its will back (MQTT-3.14.4-3).
            self._part()
            return
        session = self.session
        self._log_end(reason, text, line)
        if self._is_let_in:
            if self.version == V5:
                fitting = _fitting(reason, PacketType.DISCONNECT)
                self.send_packet(Disconnect(fitting, self.problem(text)))
        elif self.version:
            self._send_refusal(reason, text)
        self._end(will_stands=self._is_let_in)
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

    def goodbye(self, reason: ReasonCode) -> None:
        """A DISCONNECT came: nothing more is read, and what the client is owed for earlier packets still goes out."""
        self._goodbye = reason
        self._held = []
        self.link.pause_reading()
        batch = self.runtime.turn.batch
        batch.afterwards.append(self._part)
        batch.otherwise.append(lambda reason: self._part())

    def _part(self) -> None:
        """The client has what it is owed; the will stands only where the client said so (MQTT-3.14.4-3)."""
        reason = self._goodbye
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
        self._end(will_stands=self._is_let_in)
        self._close_now(linger=True)

    def taken_over(self, by: Client | None) -> None:
        """Another connection has this client id now (MQTT-3.1.4-3)."""
        session = self.session
        self.fail(ReasonCode.SESSION_TAKEN_OVER, "the client id was taken over by another connection")
        hooks = self.runtime.hooks
        if session is not None and by is not None and hooks.session_taken_over.active:
            hooks.session_taken_over(by, session.client.address)

    # Waiting

    def wait_for(self, work: Deferred[None]) -> bool | None:
        """Hold what the client sends until ``work`` is done; answers what a handler has to answer."""
        work.addErrback(self._work_failed)
        if not work.called:
            if self._held is None:
                self._held = []
            self._waits += 1
            if not self._reads_ahead:
                self.link.pause_reading()
            work.addCallback(lambda _: self._go_on())
            return True
        # What is done already may have led to something else that is waited for: what follows waits with it.
        return self.state is State.CLOSED or self._held is not None or None

    def _await_turn(self) -> None:
        """Hold what the client sends until it is its turn: others are served first."""
        if self._held is None:
            self._held = []
        self._waits += 1
        self._awaits_turn = True
        if not self._reads_ahead:
            self.link.pause_reading()
        self.runtime.slices.later(self._go_on)

    def pause_for(self, delay_s: float) -> None:
        """Read nothing for a while: a limiter's DELAY."""
        self._pauses += 1
        self.link.pause_reading()
        self.runtime.clock.later(delay_s, self._unpause)

    def use(self, session: Session) -> None:
        """The session is this connection's from here on."""
        self.session = session

    def let_in(self) -> None:
        """The client is let in: packets may be larger from here on."""
        self.accepted_at = self.services.wheel.now
        self._is_accepted()
        self._beyond = self.framer.allow(self.limits.max_packet_bytes) or None

    def enter(self, state: State) -> None:
        """Go to another state of the table."""
        if state not in TRANSITIONS[self.state]:
            raise LocalError(f"a connection can't go from {self.state.value} to {state.value}")
        self.state = state
        self._handlers = self._table.by_state[state]

    def problem(self, text: str) -> Properties:
        """A reason string, where the client wants to know (section 3.1.2.11.7)."""
        return Properties(reason_string=text) if text and self.wants_problems else NO_PROPERTIES

    def count_routes(self) -> int:
        """Add up what the client has published since the last time; answers how many topics were looked at."""
        routes = self.routes
        if not routes or self.session is None:
            return 0
        self.services.traffic.note_all(self.session.client_id, routes.values())
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

    def tells_first(self, bound: str) -> bool:
        """Whether the log has not named yet that rule or bound for this connection; from now on it has."""
        if self.limited_by is None:
            self.limited_by = set()
        if bound in self.limited_by:
            return False
        self.limited_by.add(bound)
        return True

    # Within

    @property
    def _is_let_in(self) -> bool:
        """Whether the client has its CONNACK: one that was refused leaves no will (section 3.1.2.5)."""
        return self.state in (State.CONNECTED, State.REAUTHENTICATING)

    @property
    def _reads_ahead(self) -> bool:
        """Whether to read while something is waited for, and not much: of who is not accepted yet, or for a turn.

        That a peer has gone shows in reading alone, and what plugins are asked about it is then in vain.
        """
        if self._awaits_turn:
            # It comes soon: to stop reading, and to begin again, would cost more than what is held meanwhile.
            return self.framer.held_bytes <= AWAITING_TURN_BYTES
        few = self._read_ahead_bytes <= READ_AHEAD_BYTES
        return few and not self._is_let_in and self.framer.error is None

    def _turn_away(self, why: str) -> None:
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

    def _cut(self, data: bytes) -> list[Frame]:
        """Cut packets from what came: not more than are carried out at one time."""
        frames = self.framer.feed(data)
        if frames:
            self.heard = self.services.wheel.now
            self.runtime.statistics.packets_received.value += len(frames)
        return frames

    def _take_in(self, frames: list[Frame]) -> None:
        """Ask the limiters about packets whose turn it is, and carry them out; then those that came with them."""
        framer = self.framer
        while self._carry_out(self._asked_about(frames)):
            if not framer.is_behind:
                self._look_at_rest()
                return
            if self.state is State.CLOSED:
                return
            frames = self._cut(b"")

    def _look_at_rest(self) -> None:
        """Judge what stands behind the packets that are carried out: an error, or the first byte of the next one."""
        framer = self.framer
        if framer.error is not None:
            self.refuse(framer.error)
            return
        first_byte = framer.begun
        if first_byte >= 0:
            try:
                check_first_byte(first_byte, self.state, self.version)
            except RemoteError as error:
                self.refuse(error)

    def _asked_about(self, frames: list[Frame]) -> PendingRead:
        """Ask the limiters once for all PUBLISH packets of a read."""
        resource = self.limited_to
        if resource is None or not self.services.limiting.publishes:
            return PendingRead(frames, None, False)
        publishes = sum(frame[0] >> 4 == PacketType.PUBLISH for frame, _ in frames)
        return PendingRead(frames, self._refusal_of(resource, publishes), True)

    def _carry_out(self, read: PendingRead) -> bool:
        """Carry out packets; ``False`` where what follows them must wait, or there is nobody left for it."""
        remaining = iter(read.frames)
        state_handlers = self._handlers
        refusal = read.refusal
        handlers = state_handlers if refusal is None else self._table.over_limit(state_handlers, refusal)
        counts_packets = self.services.limiting.holds_packets
        slices = self.runtime.slices
        unasked = ASKS_AFTER
        try:
            for frame, body in remaining:
                if handlers[frame[0] >> 4](self, frame, body):
                    if self._held is not None:
                        self._rest = read.after(list(remaining))
                        self._pending_bytes = len(frame)
                    return False
                if counts_packets:
                    self._packet_is_done()
                if self._handlers is not state_handlers:
                    beyond, self._beyond = self._beyond, None
                    rest = [*remaining, *(beyond or ())]
                    # In another state other limits may hold: a client's own begin when it is let in.
                    return self._carry_out(read.after(rest) if read.was_asked else self._asked_about(rest))
                unasked -= 1
                if unasked and not slices.is_heavy:
                    continue
                unasked = ASKS_AFTER
                if slices.is_over():
                    rest = list(remaining)
                    if rest or self.framer.is_behind:
                        self._rest = read.after(rest)
                        self._await_turn()
                        return False
        except RemoteError as error:
            self.refuse(error)
            return False
        except Exception:
            log.failure("{name}: a packet could not be handled", name=self.name)
            self.fail(ReasonCode.UNSPECIFIED_ERROR, "an internal error")
            return False
        self._read_is_done()
        return True

    def _go_on(self) -> None:
        """One thing that was waited for is done."""
        self._carry_on()
        why, self._lost_because = self._lost_because, None
        if why is not None:
            self.lost(why)

    def _carry_on(self) -> None:
        """Carry out what the client has sent meanwhile; what that leads to may still be waited for."""
        was_paused = self._awaits_turn and not self._reads_ahead
        self._awaits_turn = False
        self._waits -= 1
        if self._waits:
            return
        self._packet_is_done()
        self._pending_bytes = 0
        held, self._held = [*(self._held or ()), *(self._beyond or ())], None
        self._beyond = None
        rest, self._rest = self._rest, None
        if self.state is State.CLOSED:
            return
        self.runtime.turn.touch()
        if self._packet_patience is not None:
            self._packet_patience.begins_anew(self.services.wheel.now, self.framer.buffered_bytes)
        if rest is not None and not rest.was_asked:
            held = [*rest.frames, *held]
        elif rest is not None and not self._carry_out(rest):
            self._hold(held)
            self._count_inbound(False)
            return
        self._take_in(held)
        self._count_inbound(False)
        self._read_on()
        if was_paused:
            self.runtime.slices.reads_on()

    def _hold(self, frames: list[Frame]) -> None:
        """Put packets behind those that wait; where nothing is waited for, nobody is left to carry them out."""
        if self._held is not None:
            self._held.extend(frames)

    def _work_failed(self, failure: Failure) -> None:
        error = failure.value
        if isinstance(error, RemoteError):
            self.refuse(error)
            return
        reason = getattr(error, "reason", None)
        if not isinstance(reason, ReasonCode):
            log.failure("{name}: a request could not be handled", failure, name=self.name)
            reason = ReasonCode.UNSPECIFIED_ERROR
        self.fail(reason, "the request could not be carried out")

    @property
    def held_bytes(self) -> int:
        """What would be free if the connection ended: what has come, what waits, and what is in flight to a session
        that ends with it.
        """
        session = self.session
        held = self.inbound_bytes + self.waiting_bytes
        if session is not None and session.connection is self and not session.kept:
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

    def _unpause(self) -> None:
        self._pauses -= 1
        self._read_on()

    def _read_on(self) -> None:
        if self.is_listening and not self._awaits_capacity and self.state is not State.CLOSED:
            self.link.resume_reading()

    def _refusal_of(self, resource: Resource, publishes: int) -> LimitDecision | None:
        """Ask once for all PUBLISH packets of a read; ``None`` where they may all go on."""
        if not publishes:
            return None
        limiting = self.services.limiting
        limit = limiting.ask(resource, publishes)
        if limiting.is_held(resource, limit):
            self._read_grant = (resource, publishes)
        if limit.verdict is LimitVerdict.DELAY:
            self.pause_for(limit.delay_s)
            return None
        return None if limit.verdict is LimitVerdict.ALLOW else limit

    def _congest(self) -> None:
        """The client takes too little: QoS 0 is dropped, the rest stays in its queue, nothing more is read."""
        self.congested = True
        self.link.pause_reading()
        self._impatience = self.runtime.clock.later(self.limits.outbound_time_limit_s, self._lose_patience)
        if self.session is not None:
            self.runtime.slow_consumers.buffer_is_full(self.session.client, self.waiting_bytes)
            self.session.outbox = self.runtime.congested

    def _lose_patience(self) -> None:
        if self.congested and self.state is not State.CLOSED:
            self.fail(ReasonCode.QUOTA_EXCEEDED, "the client does not take what is sent to it")

    def _relieve(self) -> None:
        self.congested = False
        if self._impatience is not None:
            self._impatience.cancel()
        if self.session is not None and self.session.connection is self:
            self.session.outbox = self.outbox
            self.session.wants_pump()
        self._read_on()

    def _tell_room(self) -> None:
        """Tell those for whose messages there is room by now; all, where the connection is gone."""
        session = self.session
        waiting, self.waits_for_room = self.waits_for_room, None
        for messages, ready in waiting or ():
            if session is None or self.state is State.CLOSED or session.waiting.count < messages:
                ready.callback(None)
            elif self.waits_for_room is None:
                self.waits_for_room = [(messages, ready)]
            else:
                self.waits_for_room.append((messages, ready))

    def _send_refusal(self, reason: ReasonCode, text: str) -> None:
        """A CONNACK with a failure, for a client that was not let in."""
        if reason in (ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SESSION_TAKEN_OVER):
            reason = ReasonCode.SERVER_UNAVAILABLE  # CONNACK has no 0x8B, nor 0x8E.
        elif reason < 0x80:
            reason = ReasonCode.UNSPECIFIED_ERROR  # A plugin may disconnect with 0x00, which would let the client in.
        if self.version == V5:
            fitting = _fitting(reason, PacketType.CONNACK)
            self.send_packet(Connack(False, fitting, self.problem(text)))
        elif has_connack_code(reason, self.version):
            self.send_packet(Connack(False, reason))

    def _end(self, will_stands: bool) -> None:
        self.enter(State.CLOSED)
        self._release_inbound()
        if self._impatience is not None:
            self._impatience.cancel()
        session = self.session
        if session is not None:
            self.services.sessions.left(session, self, will_stands)
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
        if session is not None and self._is_let_in:
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

    def _tell_lost(self, session: Session, text: str) -> None:
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


_PUBREC: Final = PacketType.PUBREC << 4
_PUBREL: Final = PacketType.PUBREL << 4 | 2


def _has_publish(frames: list[Frame]) -> bool:
    return any(frame[0] >> 4 == PacketType.PUBLISH for frame, _ in frames)


def _fitting(reason: ReasonCode, packet_type: PacketType) -> ReasonCode:
    """The reason, where that packet may carry it, else the one that says nothing in particular."""
    if packet_type is PacketType.DISCONNECT and reason is ReasonCode.SERVER_UNAVAILABLE:
        return ReasonCode.SERVER_BUSY  # DISCONNECT has no 0x88; this says the same: come again.
    return fitting(reason, packet_type, ReasonCode.UNSPECIFIED_ERROR)


def _without_problems(packet: Packet) -> Packet:
    """The packet without what must fall away first where it is too large (MQTT-3.2.2-19 and its kin)."""
    properties = getattr(packet, "properties", NO_PROPERTIES)
    if not properties:
        return packet
    return evolve(packet, properties=properties.without("reason_string", "user_property"))  # type: ignore[misc]
