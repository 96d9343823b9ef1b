"""Input of one connection that is not handled yet: counted, and limited in size and time.

It consists of the packet that is arriving, packets that wait for a pending answer, and bytes held by a layer below. A
connection that holds more than its share of the common limit is not read until there is capacity.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.output import Output
from kinmqtt.broker.connection.packet_deadline import PacketDeadline
from kinmqtt.broker.connection.read_gate import CAPACITY, CONGESTION, HOLDS, ReadGate
from kinmqtt.mqtt.framing import Framer

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services

FRAMES_AT_ONCE: Final = 1024
"""Packets cut from a read at a time; a read of 256 KB may hold 128,000."""


class Intake(Output):
    """The unhandled input of one client."""

    __slots__ = (
        "_due",
        "_packet_deadline",
        "beneath_bytes",
        "framer",
        "gate",
    )

    def __init__(self, services: Services, link: Link) -> None:
        super().__init__(services, link)
        self.framer = Framer(self.limits.max_connect_bytes, FRAMES_AT_ONCE)
        self.beneath_bytes = 0
        """Bytes held by a layer below, such as a WebSocket handshake."""
        self.gate = ReadGate(link, self.framer)
        self._packet_deadline: PacketDeadline | None = None
        self._due = 0
        """When the timer wheel checks the connection, in its seconds; 0 or a past second for never."""

    def time_is_over(self, now: int) -> None:
        """Check the connection's timers."""
        raise NotImplementedError

    def _resume_reading(self) -> None:
        """Resume reading if no reason to stop is left."""
        raise NotImplementedError

    @property
    def may_go_on(self) -> bool:
        """Whether only a lack of capacity keeps the broker from reading the rest of a packet."""
        return not self.gate.reasons & (HOLDS | CONGESTION) and self.framer.buffered_bytes > 0

    @property
    def missing_bytes(self) -> int:
        """The bytes still missing of the packet that is arriving."""
        return self.framer.missing_bytes

    def wait_for_buffer(self) -> None:
        """Stop reading until there is capacity."""
        if not self.gate.reasons & CAPACITY:
            self.gate.shut(CAPACITY)
        self.runtime.buffers.wait(self)

    def buffer_available(self) -> None:
        """Resume reading: there is capacity."""
        self.gate.clear(CAPACITY)
        self._resume_reading()

    def held_beneath(self, size_bytes: int) -> None:
        """Count the bytes that a layer below holds."""
        self.beneath_bytes = size_bytes
        self._count_inbound(False)

    def _count_accepted(self) -> None:
        """Move the held bytes to the share of accepted clients."""
        self.accepted = True
        self.runtime.buffers.accept(self.inbound_bytes)

    def _count_inbound(self, completed: bool) -> None:
        """Recount the held input; ``completed`` says that whole packets have arrived."""
        if self.is_closed():
            return
        framer = self.framer
        partial = framer.buffered_bytes > 0
        held = framer.held_bytes + self.beneath_bytes + self.gate.waiting_bytes
        more = held - self.inbound_bytes
        self.inbound_bytes = held
        if self.accepted:
            self._limit_packet_time(partial, completed)
        buffers = self.runtime.buffers
        if completed or not partial:
            self.stalled = False
            buffers.needs_no_grant(self)
        if more:
            buffers.hold_inbound(more, self.accepted)
        if held <= buffers.inbound_share(self.accepted) or self in buffers.granted:
            if self.gate.reasons & CAPACITY:
                buffers.leave(self)
                self.buffer_available()
        elif self.inbound_bytes:  # Otherwise it was just disconnected to free memory.
            self.wait_for_buffer()

    def _limit_packet_time(self, partial: bool, completed: bool) -> None:
        """Set or update the time limit of the packet that is arriving."""
        wheel = self.services.wheel
        deadline = self._packet_deadline
        if not partial:
            if deadline is not None:
                deadline.complete()
        elif deadline is not None:
            deadline.more_arrived(wheel.now, completed)
        else:
            self._packet_deadline = deadline = PacketDeadline(wheel.now, self.limits.packet_time_limit_s)
            if self._due <= wheel.now or deadline.due < self._due:
                wheel.remove(self, self._due)
                self._due = wheel.add(self, deadline.due)

    def _packet_in_time(self, now: int) -> bool:
        """Returns whether the packet that is arriving, if any, is within its time limit."""
        deadline = self._packet_deadline
        if deadline is None or now < deadline.due:
            return True
        partial = self.framer.buffered_bytes
        if not partial:
            self._packet_deadline = None
            return True
        return deadline.may_continue(now, partial, self.gate.is_listening)

    def _release_inbound(self) -> None:
        """Discard all unhandled input."""
        self.gate.rest = None
        self.gate.beyond = None
        self.framer.forget()
        held, self.inbound_bytes = self.inbound_bytes, 0
        buffers = self.runtime.buffers
        buffers.leave(self)
        if held:
            buffers.hold_inbound(-held, self.accepted)
