"""The read gate of a connection: the reasons not to read its socket, and the packets that wait.

Reading stops for seven reasons (:data:`RULES`), which may overlap. ANSWER and TURN hold back the client's next
packets until an answer has arrived or the client's turn has come. Meanwhile the socket is still read ahead up to a
limit: a closed peer shows only in reading, and pausing and resuming costs more than a little memory. For the other
reasons, packets already read are handled and nothing more is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kinmqtt.broker.connection.link import Link
from kinmqtt.mqtt.framing import Framer
from kinmqtt_spi.services.limiter import LimitDecision

READ_AHEAD_BYTES: Final = 65_536
"""Bytes read ahead after CONNECT from a client that is not accepted yet."""

AWAITING_TURN_BYTES: Final = 128 << 10
"""Bytes read ahead from a client that awaits its turn."""

FRAME_BYTES: Final = 100
"""Overhead of a waiting packet: it matters for a flood of the smallest packets."""

ANSWER: Final = 1
TURN: Final = 2
DELAY: Final = 4
CAPACITY: Final = 8
CONGESTION: Final = 16
DISCONNECTING: Final = 32
FORWARDING: Final = 64


class Rule(NamedTuple):
    """What to do for one reason to stop reading."""

    why: str
    holds_packets: bool
    """Whether packets already read wait."""
    reads_ahead_bytes: int
    """How much is still read."""


RULES: Final[Mapping[int, Rule]] = {
    ANSWER: Rule("a plugin or a store has not answered", True, READ_AHEAD_BYTES),
    TURN: Rule("other connections are served first", True, AWAITING_TURN_BYTES),
    DELAY: Rule("a limiter, or a shortage of memory, slows the client down", False, 0),
    CAPACITY: Rule("connections hold as much input as they may", False, 0),
    CONGESTION: Rule("the client does not take what is sent to it", False, 0),
    DISCONNECTING: Rule("a DISCONNECT has come", True, 0),
    FORWARDING: Rule("other nodes have not answered for many of its messages, or an outbox is full", False, 0),
}
"""The reasons. For ANSWER, nothing is read ahead from an accepted client, which may send megabytes."""

HOLDS: Final = ANSWER | TURN | DISCONNECTING
"""The reasons that hold packets; the same as in :data:`RULES`."""

Frame = tuple[bytes, int]
"""A packet and the offset of its body."""


class PendingRead:
    """Packets of a read that are not handled yet, with the limiters' decision on its PUBLISH packets."""

    __slots__ = ("frames", "refusal", "was_asked")

    def __init__(self, frames: list[Frame], refusal: LimitDecision | None, was_asked: bool) -> None:
        self.frames = frames
        self.refusal = refusal
        """Why its PUBLISH packets are refused; ``None`` if they are allowed."""
        self.was_asked = was_asked
        """Whether limiters were asked: they are not asked twice for one packet."""

    def after(self, frames: list[Frame]) -> PendingRead:
        """Returns this read with only ``frames`` left."""
        return PendingRead(frames, self.refusal, self.was_asked)


class ReadGate:
    """Decides whether one connection is read, and holds its waiting packets."""

    __slots__ = (
        "_ahead_bytes",
        "_answers",
        "_delays",
        "_framer",
        "_is_accepted",
        "_link",
        "beyond",
        "held",
        "pending_bytes",
        "reasons",
        "rest",
    )

    def __init__(self, link: Link, framer: Framer) -> None:
        self._link = link
        self._framer = framer
        self.reasons = 0
        """The reasons not to read: bits of the constants above; 0 while the gate is open."""
        self._answers = 0
        """The number of pending answers."""
        self._delays = 0
        """The number of delays in effect."""
        self._ahead_bytes = 0
        """Bytes read while an answer about a client that is not accepted yet was pending."""
        self._is_accepted = False
        self.rest: PendingRead | None = None
        """The rest of the read whose packet awaits an answer; handled before :attr:`held`."""
        self.held: list[Frame] | None = None
        """Later packets, which wait behind :attr:`rest`."""
        self.beyond: list[Frame] | None = None
        """Packets that came with CONNECT and exceed the size limit of clients not accepted yet."""
        self.pending_bytes = 0
        """The size of the packet whose answer is pending."""

    @property
    def holds_packets(self) -> bool:
        """Whether packets already read wait."""
        return self.reasons & HOLDS != 0

    @property
    def awaits_turn(self) -> bool:
        """Whether packets wait for a turn of the event loop."""
        return self.reasons & TURN != 0

    @property
    def is_listening(self) -> bool:
        """Whether the broker reads, or stopped only for a lack of capacity."""
        return self.reasons & ~CAPACITY == 0

    def accept(self) -> None:
        """Stop reading ahead while an answer is pending: the client is accepted."""
        self._is_accepted = True

    def wait(self, reason: int) -> None:
        """Hold the client's next packets for :data:`ANSWER` or :data:`TURN`."""
        if reason == ANSWER:
            self._answers += 1
        self.reasons |= reason
        if not self.reads_ahead:
            self._link.pause_reading()

    def end_wait(self, reason: int) -> bool:
        """End one wait, for :data:`ANSWER` or :data:`TURN`; returns whether no other is pending."""
        if reason == TURN:
            self.reasons &= ~TURN
        else:
            self._answers -= 1
        if self._answers:
            return False
        self.reasons &= ~ANSWER
        return True

    def shut(self, reason: int) -> None:
        """Stop reading for a reason other than :data:`ANSWER` and :data:`TURN`."""
        if reason == DELAY:
            self._delays += 1
        self.reasons |= reason
        self._link.pause_reading()

    def clear(self, reason: int) -> None:
        """Remove a reason; the caller then calls :meth:`open`."""
        if reason == DELAY:
            self._delays -= 1
            if self._delays:
                return
        self.reasons &= ~reason

    def open(self) -> None:
        """Resume reading if no reason is left."""
        if not self.reasons:
            self._link.resume_reading()

    @property
    def reads_ahead(self) -> bool:
        """Whether to keep reading while packets are held."""
        if self.reasons & TURN:
            return self._framer.held_bytes <= AWAITING_TURN_BYTES
        return self._ahead_bytes <= READ_AHEAD_BYTES and not self._is_accepted and self._framer.error is None

    def read_ahead(self, data: bytes) -> None:
        """Hold bytes read while packets are held, without cutting them into packets."""
        self._framer.hold(data)
        if not self.reasons & TURN:
            self._ahead_bytes += len(data)
        if not self.reads_ahead:
            self._link.pause_reading()

    def hold(self, frames: list[Frame]) -> None:
        """Append waiting packets; if nothing is pending the connection has ended, and they are discarded."""
        if not self.reasons & HOLDS:
            return
        if self.held is None:
            self.held = frames
        else:
            self.held.extend(frames)

    def take_held(self) -> list[Frame]:
        """Remove and return the packets that wait behind :attr:`rest`."""
        held = [*(self.held or ()), *(self.beyond or ())]
        self.held = self.beyond = None
        self.pending_bytes = 0
        return held

    @property
    def waiting_bytes(self) -> int:
        """The size of the waiting packets and of the one whose answer is pending."""
        if not (self.held or self.rest is not None or self.beyond):
            return self.pending_bytes
        rest = self.rest
        waiting = _size_of(self.held) + _size_of(self.beyond)
        return self.pending_bytes + waiting + (0 if rest is None else _size_of(rest.frames))

    @property
    def last_waiting(self) -> Frame | None:
        """The last of the waiting packets; ``None`` if none waits."""
        if self.held:
            return self.held[-1]
        return self.rest.frames[-1] if self.rest is not None and self.rest.frames else None

    def forget(self) -> None:
        """Discard all waiting packets."""
        self.rest = None
        self.beyond = None
        self.held = None


def _size_of(frames: list[Frame] | None) -> int:
    """Returns the size of waiting packets, with their overhead."""
    if not frames:
        return 0
    return sum(len(frame) for frame, _ in frames) + FRAME_BYTES * len(frames)
