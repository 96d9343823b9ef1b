"""Carrying out what one client sends: packets are cut from reads, limiters are asked, and handlers carry them out.

While an answer is waited for, what the client sends next waits too, in order (:mod:`.read_gate`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from kinmqtt.broker.connection.intake import Intake
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.read_gate import ANSWER, DELAY, TURN, Frame, PendingRead
from kinmqtt.broker.overload import SLOW_BYTES_PER_S, SLOWED_FROM_BYTES
from kinmqtt.mqtt.connection_state import State, check_first_byte
from kinmqtt.mqtt.errors import RemoteError
from kinmqtt.mqtt.packets import PacketType
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.limiter import LimitDecision, LimitVerdict, Resource

if TYPE_CHECKING:
    from kinmqtt.broker.connection.handler_table import HandlerTable
    from kinmqtt.broker.services import Services

log = Logger("kinmqtt.connection")

MANY_PIECES: Final = 16_384
"""So many answers to one read are not gathered until the turn ends."""

LARGE_READ_BYTES: Final = 256 << 10
"""Read of a packet that is larger still, before what follows may wait for another turn."""

SMALL_READ_BYTES: Final = 1024
"""A read that is cut and begun in the turn in which it comes, however much that turn has done."""

ASKS_AFTER: Final = 32
"""Packets carried out between two looks at the clock."""

Grant = tuple[Resource, int]
"""What limiters granted, and want to be told the end of."""


class Reader(Intake):
    """What one client sends, from the bytes to the handlers."""

    __slots__ = (
        "_handlers",
        "_lasting_grants",
        "_lost_reason",
        "_packet_grant",
        "_read_grant",
        "_table",
        "heard",
        "limited_to",
        "state",
        "version",
    )

    def __init__(self, services: Services, handlers: HandlerTable, link: Link) -> None:
        """``handlers`` is the table of what carries out each packet."""
        super().__init__(services, link)
        self.state = State.AWAITING_CONNECT
        self._table = handlers
        self._handlers = handlers.by_state[State.AWAITING_CONNECT]
        self.version = 0
        """The protocol version; 0 until a CONNECT has named it."""
        self.heard = services.wheel.now
        """The wheel's second in which the client was last heard of."""
        self.limited_to: Resource | None = None
        """What limiters are asked for before each PUBLISH, where they want to be."""
        self._lasting_grants: list[Grant] | None = None
        """Until the connection is gone: the connection itself, and its CONNECT."""
        self._read_grant: Grant | None = None
        """Until the PUBLISH packets of the read in hand are carried out."""
        self._packet_grant: Grant | None = None
        """Until the packet in hand is carried out: packets are carried out one by one."""
        self._lost_reason: str | None = None
        """Why the network connection is gone, where what came by it before that is still to be carried out."""

    def refuse(self, error: RemoteError) -> None:
        """Close because the peer broke a rule."""
        raise NotImplementedError

    def lost(self, text: str) -> None:
        """The network connection is gone, from whichever side."""
        raise NotImplementedError

    def receive(self, data: bytes) -> None:
        """Bytes arrived."""
        if self.is_closed():
            return
        services = self.services
        runtime = self.runtime
        runtime.turn.touch()
        received = runtime.statistics.bytes_received
        received.value += len(data)
        if received.value > services.overload.look_at:
            services.overload.look_soon()
        framer = self.framer
        gate = self.gate
        if gate.holds_packets:
            # It is cut when its turn comes.
            gate.read_ahead(data)
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
            gate.rest = PendingRead(frames, None, False)
            self._await_turn()
        elif frames:
            self._process(frames)
        else:
            self._check_rest()
        buffered_bytes = framer.buffered_bytes
        if buffered_bytes or self.inbound_bytes or gate.holds_packets:
            self._count_inbound(bool(frames))
            if buffered_bytes > LARGE_READ_BYTES:
                runtime.slices.hurry()
        if len(self.outbox.packets) > MANY_PIECES:
            # What a flood of small packets is answered with takes more in pieces than it has bytes.
            self.outbox.flush()

    def wait_for(self, work: Deferred[None]) -> bool | None:
        """Hold what the client sends until ``work`` is done; answers what a handler has to answer."""
        work.addErrback(self._work_failed)
        if not work.called:
            self.gate.wait(ANSWER)
            work.addCallback(lambda _: self._resume())
            return True
        # What is done already may have led to something else that is waited for: what follows waits with it.
        return self.is_closed() or self.gate.holds_packets or None

    def pause_for(self, delay_s: float) -> None:
        """Read nothing for a while: a limiter's DELAY."""
        self.gate.shut(DELAY)
        self.runtime.clock.later(delay_s, self._unpause)

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

    # Within

    def _release_packet_grant(self) -> None:
        grant, self._packet_grant = self._packet_grant, None
        if grant is not None:
            self.services.limiting.release(*grant)

    def _release_read_grant(self) -> None:
        grant, self._read_grant = self._read_grant, None
        if grant is not None:
            self.services.limiting.release(*grant)

    def _await_turn(self) -> None:
        """Hold what the client sends until it is its turn: others are served first."""
        self.gate.wait(TURN)
        self.runtime.slices.later(self._resume)

    def _unpause(self) -> None:
        self.gate.clear(DELAY)
        self._resume_reading()

    def _cut(self, data: bytes) -> list[Frame]:
        """Cut packets from what came: not more than are carried out at one time."""
        frames = self.framer.feed(data)
        if frames:
            self.heard = self.services.wheel.now
            self.runtime.statistics.packets_received.value += len(frames)
        return frames

    def _process(self, frames: list[Frame]) -> None:
        """Ask the limiters about packets whose turn it is, and carry them out; then those that came with them."""
        framer = self.framer
        while self._run_handlers(self._ask_limiters(frames)):
            if not framer.is_behind:
                self._check_rest()
                return
            if self.is_closed():
                return
            frames = self._cut(b"")

    def _check_rest(self) -> None:
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

    def _ask_limiters(self, frames: list[Frame]) -> PendingRead:
        """Ask the limiters once for all PUBLISH packets of a read."""
        resource = self.limited_to
        if resource is None or not self.services.limiting.publishes:
            return PendingRead(frames, None, False)
        publishes = sum(frame[0] >> 4 == PacketType.PUBLISH for frame, _ in frames)
        return PendingRead(frames, self._refusal_of(resource, publishes), True)

    def _run_handlers(self, read: PendingRead) -> bool:
        """Carry out packets; ``False`` where what follows them must wait, or there is nobody left for it."""
        gate = self.gate
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
                    if gate.holds_packets:
                        gate.rest = read.after(list(remaining))
                        gate.pending_bytes = len(frame)
                    return False
                if counts_packets:
                    self._release_packet_grant()
                if self._handlers is not state_handlers:
                    beyond, gate.beyond = gate.beyond, None
                    rest = [*remaining, *(beyond or ())]
                    # In another state other limits may hold: a client's own begin when it is let in.
                    return self._run_handlers(read.after(rest) if read.was_asked else self._ask_limiters(rest))
                unasked -= 1
                if unasked and not slices.is_heavy:
                    continue
                unasked = ASKS_AFTER
                if slices.is_over():
                    rest = list(remaining)
                    if rest or self.framer.is_behind:
                        gate.rest = read.after(rest)
                        self._await_turn()
                        return False
        except RemoteError as error:
            self.refuse(error)
            return False
        except Exception:
            log.failure("{name}: a packet could not be handled", name=self.name)
            self.fail(ReasonCode.UNSPECIFIED_ERROR, "an internal error")
            return False
        self._release_read_grant()
        return True

    def _resume(self) -> None:
        """One thing that was waited for is done."""
        self._process_held()
        why, self._lost_reason = self._lost_reason, None
        if why is not None:
            self.lost(why)

    def _process_held(self) -> None:
        """Carry out what the client has sent meanwhile; what that leads to may still be waited for."""
        gate = self.gate
        was_paused = gate.awaits_turn and not gate.reads_ahead
        if not gate.answered():
            return
        self._release_packet_grant()
        rest, gate.rest = gate.rest, None
        held = gate.take_held()
        if self.is_closed():
            return
        self.runtime.turn.touch()
        if self._packet_deadline is not None:
            self._packet_deadline.restart(self.services.wheel.now, self.framer.buffered_bytes)
        if rest is not None and not rest.was_asked:
            held = [*rest.frames, *held]
        elif rest is not None and not self._run_handlers(rest):
            gate.hold(held)
            self._count_inbound(False)
            return
        self._process(held)
        self._count_inbound(False)
        self._resume_reading()
        if was_paused:
            self.runtime.slices.count_resumed_read()

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

    def _resume_reading(self) -> None:
        if not self.is_closed():
            self.gate.open()


def _has_publish(frames: list[Frame]) -> bool:
    return any(frame[0] >> 4 == PacketType.PUBLISH for frame, _ in frames)
