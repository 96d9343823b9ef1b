"""Processing of one client's input: cut reads into packets, ask limiters, call handlers.

While an answer is pending, later packets of the client wait in order (:mod:`.read_gate`).
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
"""With more pieces of output than this, a read's answers are sent before the turn ends."""

LARGE_READ_BYTES: Final = 256 << 10
"""A packet larger than this may use up the slice by its reading alone."""

SMALL_READ_BYTES: Final = 1024
"""A read up to this size is normally processed at once, even if the slice is over."""

ASKS_AFTER: Final = 32
"""Packets handled between two checks of the slice."""

Grant = tuple[Resource, int]
"""A resource granted by limiters and its amount, to be released."""


class Reader(Intake):
    """Processes the input of one client, from bytes to handlers."""

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
        """``handlers`` has the function that handles each packet."""
        super().__init__(services, link)
        self.state = State.AWAITING_CONNECT
        self._table = handlers
        self._handlers = handlers.by_state[State.AWAITING_CONNECT]
        self.version = 0
        """The protocol version; 0 before CONNECT."""
        self.heard = services.wheel.now
        """When a packet last arrived, in seconds of the timer wheel."""
        self.limited_to: Resource | None = None
        """The resource for which limiters are asked before PUBLISH; ``None`` if no limiter wants it."""
        self._lasting_grants: list[Grant] | None = None
        """Grants until the connection ends: for the connection and for CONNECT."""
        self._read_grant: Grant | None = None
        """The grant until the PUBLISH packets of the current read are handled."""
        self._packet_grant: Grant | None = None
        """The grant until the current packet is handled."""
        self._lost_reason: str | None = None
        """Why the network connection was lost, while packets received before are still to be handled."""

    def refuse(self, error: RemoteError) -> None:
        """Close because the client violated the protocol or a limit."""
        raise NotImplementedError

    def lost(self, text: str) -> None:
        """Clean up after the network connection was closed, by either side."""
        raise NotImplementedError

    def receive(self, data: bytes) -> None:
        """Process bytes that arrived."""
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
            # They are cut into packets later.
            gate.read_ahead(data)
            self._count_inbound(False)
            return
        slices = runtime.slices
        if not self.version:
            slices.hurry()
        may_wait = len(data) > SMALL_READ_BYTES or not self.version or slices.is_heavy or slices.is_flooded
        if may_wait and slices.is_over():
            self._defer(data)
            return
        was_large = framer.buffered_bytes > LARGE_READ_BYTES
        frames = self._cut(data)
        if services.overload.slows and len(data) >= SLOWED_FROM_BYTES:
            if framer.buffered_bytes or framer.is_behind or _has_publish(frames):
                self.pause_for(len(data) / SLOW_BYTES_PER_S)
        if was_large and frames and slices.is_over():
            # Reading and joining the large packet used up the slice.
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
                slices.hurry()
        if len(self.turn_buffer.packets) > MANY_PIECES:
            # For many small answers the pieces take more memory than the bytes.
            self.turn_buffer.flush()

    def _defer(self, data: bytes) -> None:
        """Keep bytes for a later turn: there is load, such as many new clients at once."""
        self.framer.hold(data)
        if self.services.overload.slows:
            self.pause_for(len(data) / SLOW_BYTES_PER_S)
        self._await_turn()
        self._count_inbound(False)

    def wait_for(self, work: Deferred[None]) -> bool | None:
        """Hold later packets until ``work`` is done; returns the result for the handler to return."""
        work.addErrback(self._work_failed)
        if not work.called:
            self.gate.wait(ANSWER)
            work.addCallback(lambda _: self._resume(ANSWER))
            return True
        # Work that is already done may have started another wait: later packets wait for that.
        return self.is_closed() or self.gate.holds_packets or None

    def pause_for(self, delay_s: float) -> None:
        """Stop reading for ``delay_s`` seconds, for a limiter's DELAY or a shortage of memory."""
        self.gate.shut(DELAY)
        self.runtime.clock.later(delay_s, self._unpause)

    def acquire_for_good(self, resource: Resource) -> LimitDecision:
        """Ask the limiters for a resource that is in use until the connection ends."""
        limit = self.services.limiting.ask(resource, 1)
        if self.services.limiting.is_held(resource, limit):
            if self._lasting_grants is None:
                self._lasting_grants = []
            self._lasting_grants.append((resource, 1))
        return limit

    def acquire_for_packet(self, resource: Resource, amount: int) -> LimitDecision:
        """Ask the limiters for a resource that is in use until the current packet is handled."""
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
        """Hold later packets until a later turn: other connections are served first."""
        self.gate.wait(TURN)
        self.runtime.slices.later(self._take_turn)

    def _unpause(self) -> None:
        self.gate.clear(DELAY)
        self._resume_reading()

    def _cut(self, data: bytes) -> list[Frame]:
        """Cut packets from ``data``, at most as many as are handled at a time."""
        frames = self.framer.feed(data)
        if frames:
            self.heard = self.services.wheel.now
            self.runtime.statistics.packets_received.value += len(frames)
        return frames

    def _process(self, frames: list[Frame]) -> None:
        """Ask the limiters about packets and handle them, then the rest of what the framer holds."""
        framer = self.framer
        while self._run_handlers(self._ask_limiters(frames)):
            if not framer.is_behind:
                self._check_rest()
                return
            if self.is_closed():
                return
            frames = self._cut(b"")

    def _check_rest(self) -> None:
        """Check the bytes after the handled packets: for a framing error, or an invalid first byte."""
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
        """Ask the limiters once for all PUBLISH packets of a read; returns the read with their decision."""
        resource = self.limited_to
        if resource is None or not self.services.limiting.publishes:
            return PendingRead(frames, None, False)
        publishes = sum(frame[0] >> 4 == PacketType.PUBLISH for frame, _ in frames)
        return PendingRead(frames, self._refusal_of(resource, publishes), True)

    def _run_handlers(self, read: PendingRead) -> bool:
        """Call the handlers of packets; ``False`` if later packets must wait or the connection has ended."""
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
                    # Another state has other handlers and maybe other limits: a client's own apply once accepted.
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
            log.failure("{name}: a packet handler failed", name=self.name)
            self.fail(ReasonCode.UNSPECIFIED_ERROR, "an internal error")
            return False
        self._release_read_grant()
        return True

    def _take_turn(self) -> None:
        self._resume(TURN)

    def _resume(self, reason: int) -> None:
        """Continue after a wait, and report a connection lost meanwhile."""
        self._process_held(reason)
        why, self._lost_reason = self._lost_reason, None
        if why is not None:
            self.lost(why)

    def _process_held(self, reason: int) -> None:
        """Process the packets held during a wait; they may start another wait."""
        gate = self.gate
        was_paused = gate.awaits_turn and not gate.reads_ahead
        if not gate.end_wait(reason):
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
            log.failure("{name}: a request failed", failure, name=self.name)
            reason = ReasonCode.UNSPECIFIED_ERROR
        self.fail(reason, "the request failed")

    def _refusal_of(self, resource: Resource, publishes: int) -> LimitDecision | None:
        """Ask once for all PUBLISH packets of a read; returns the refusal, ``None`` if they are allowed."""
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
