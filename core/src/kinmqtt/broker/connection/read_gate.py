"""When a connection is read from: the reasons to stop, and what has come meanwhile.

Reading stops for six reasons (:data:`RULES`), several of them at a time. Two of them hold packets back: the client's
next packet waits until an answer is there, or until it is this client's turn. Under these two the socket is read
ahead for a while: that a peer has gone shows in reading alone, and to stop and begin again costs more than a little
memory. Under the others packets at hand are carried out, and nothing more is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from kinmqtt.broker.connection.link import Link
from kinmqtt.mqtt.framing import Framer
from kinmqtt_spi.services.limiter import LimitDecision

READ_AHEAD_BYTES: Final = 65_536
"""Read of a client that is not accepted yet, behind its CONNECT, before it is read no more until it is."""

AWAITING_TURN_BYTES: Final = 128 << 10
"""Read of a client that awaits its turn before it is read no more until it has it."""

FRAME_BYTES: Final = 100
"""What a packet takes besides its bytes while it waits: a flood of the smallest is no small thing to hold."""

ANSWER: Final = 1
TURN: Final = 2
DELAY: Final = 4
CAPACITY: Final = 8
CONGESTION: Final = 16
DISCONNECTING: Final = 32


class Rule(NamedTuple):
    """What a reason to stop reading leads to."""

    why: str
    holds_packets: bool
    """Whether packets that have come wait."""
    reads_ahead_bytes: int
    """How much is read all the same."""


RULES: Final[Mapping[int, Rule]] = {
    ANSWER: Rule("a plugin or a store has not answered", True, READ_AHEAD_BYTES),
    TURN: Rule("other connections are served first", True, AWAITING_TURN_BYTES),
    DELAY: Rule("a limiter, or a shortage of memory, slows the client down", False, 0),
    CAPACITY: Rule("connections hold as much input as they may", False, 0),
    CONGESTION: Rule("the client does not take what is sent to it", False, 0),
    DISCONNECTING: Rule("a DISCONNECT has come", True, 0),
}
"""The reasons. After ANSWER nothing is read ahead of a client that is accepted: it may send megabytes."""

HOLDS: Final = ANSWER | TURN | DISCONNECTING
"""The reasons that hold packets, as :data:`RULES` has them."""

Frame = tuple[bytes, int]
"""A packet, and where its body begins."""


class PendingRead:
    """Packets of a read that are still to be carried out, and what limiters said of its PUBLISH packets."""

    __slots__ = ("frames", "refusal", "was_asked")

    def __init__(self, frames: list[Frame], refusal: LimitDecision | None, was_asked: bool) -> None:
        self.frames = frames
        self.refusal = refusal
        """Why its PUBLISH packets are refused; ``None`` where they are not."""
        self.was_asked = was_asked
        """Whether limiters were asked at all: they are not asked twice for one packet."""

    def after(self, frames: list[Frame]) -> PendingRead:
        """The same read, of which these are left."""
        return PendingRead(frames, self.refusal, self.was_asked)


class ReadGate:
    """Whether one connection is read from, and the packets that wait."""

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
        """Why nothing is read: a sum of the constants above; 0 where the gate is open."""
        self._answers = 0
        """How many answers are waited for,"""
        self._delays = 0
        """and how many delays."""
        self._ahead_bytes = 0
        """What was read while a plugin was asked about a client that is not accepted yet."""
        self._is_accepted = False
        self.rest: PendingRead | None = None
        """What is left of the read whose packet is waited for; it goes before what is held."""
        self.held: list[Frame] | None = None
        """Packets that wait behind it."""
        self.beyond: list[Frame] | None = None
        """Packets that came with CONNECT and were too large for a client that was not accepted."""
        self.pending_bytes = 0
        """The size of the packet whose answer is waited for."""

    @property
    def holds_packets(self) -> bool:
        """Whether packets that have come wait."""
        return self.reasons & HOLDS != 0

    @property
    def awaits_turn(self) -> bool:
        """Whether nothing is waited for but a turn of the event loop."""
        return self.reasons & TURN != 0

    @property
    def is_listening(self) -> bool:
        """Whether nothing but a lack of capacity can keep the broker from reading what the client sends."""
        return self.reasons & ~CAPACITY == 0

    def accept(self) -> None:
        """The client has its CONNACK: nothing more is read ahead of an answer."""
        self._is_accepted = True

    def wait(self, reason: int) -> None:
        """Hold the client's next packets, for :data:`ANSWER` or :data:`TURN`."""
        if reason == ANSWER:
            self._answers += 1
        self.reasons |= reason
        if not self.reads_ahead:
            self._link.pause_reading()

    def answered(self) -> bool:
        """What was waited for is there; whether it was the last that was."""
        if self.reasons & TURN:
            self.reasons &= ~TURN
        else:
            self._answers -= 1
        if self._answers:
            return False
        self.reasons &= ~ANSWER
        return True

    def shut(self, reason: int) -> None:
        """Read nothing more for a reason that holds no packets, or for :data:`DISCONNECTING`."""
        if reason == DELAY:
            self._delays += 1
        self.reasons |= reason
        self._link.pause_reading()

    def clear(self, reason: int) -> None:
        """A reason is over; :meth:`open` is to be called then."""
        if reason == DELAY:
            self._delays -= 1
            if self._delays:
                return
        self.reasons &= ~reason

    def open(self) -> None:
        """Read again, where no reason is left."""
        if not self.reasons:
            self._link.resume_reading()

    @property
    def reads_ahead(self) -> bool:
        """Whether to read although packets are held."""
        if self.reasons & TURN:
            return self._framer.held_bytes <= AWAITING_TURN_BYTES
        return self._ahead_bytes <= READ_AHEAD_BYTES and not self._is_accepted and self._framer.error is None

    def read_ahead(self, data: bytes) -> None:
        """Bytes have come while packets are held: keep them uncut."""
        self._framer.hold(data)
        if not self.reasons & TURN:
            self._ahead_bytes += len(data)
        if not self.reads_ahead:
            self._link.pause_reading()

    def hold(self, frames: list[Frame]) -> None:
        """Put packets behind those that wait; where nothing is waited for, nobody is left to carry them out."""
        if not self.reasons & HOLDS:
            return
        if self.held is None:
            self.held = frames
        else:
            self.held.extend(frames)

    def take_held(self) -> list[Frame]:
        """Take the packets that wait behind :attr:`rest`."""
        held = [*(self.held or ()), *(self.beyond or ())]
        self.held = self.beyond = None
        self.pending_bytes = 0
        return held

    @property
    def waiting_bytes(self) -> int:
        """What the packets take that wait, and the one whose answer is waited for."""
        if not (self.held or self.rest is not None or self.beyond):
            return self.pending_bytes
        rest = self.rest
        waiting = _size_of(self.held) + _size_of(self.beyond)
        return self.pending_bytes + waiting + (0 if rest is None else _size_of(rest.frames))

    def forget(self) -> None:
        """Nothing that waits is carried out any more."""
        self.rest = None
        self.beyond = None
        self.held = None


def _size_of(frames: list[Frame] | None) -> int:
    """What packets take that wait."""
    if not frames:
        return 0
    return sum(len(frame) for frame, _ in frames) + FRAME_BYTES * len(frames)
