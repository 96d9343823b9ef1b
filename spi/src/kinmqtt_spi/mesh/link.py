"""One end of the link between two processes: batches and calls, in order, answered, and resent when they were lost.

All frames of one direction but HELLO and ACK are numbered in the order in which they are written. The receiver keeps
the last number for as long as it knows the peer's uid, so what is sent again reaches its owner once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import deque
from struct import Struct
from typing import Final, Protocol

from attrs import frozen

from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.mesh.frames import (
    ACK,
    ANSWER,
    CALL,
    DELIVER,
    FAILURE,
    HEADER_BYTES,
    HELLO,
    HELLO_FRAME_BYTES,
    MAX_FRAME_BYTES,
    PUSH,
    FrameDecoder,
    Hello,
    MalformedFrame,
    encode,
)
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.cluster import LinkState
from kinmqtt_spi.services.plugin import Clock, Timer

LOWEST_VERSION: Final = 1
HIGHEST_VERSION: Final = 1
"""The versions of the protocol that a link speaks."""
LAZY_FRAMES: Final = 32
"""How many frames are acknowledged together, if no frame goes back that takes the acknowledgement along."""
LAZY_SHARE: Final = 8
"""This part of the credit is acknowledged after the read, so that the sender does not run out of it."""
LAZY_S: Final = 0.02
"""How long batches, calls and large answers wait for an acknowledgement; small answers wait without limit."""
LARGE_ANSWER_BYTES: Final = 64 << 10
"""An answer of this size does not wait for others: its sender keeps it until it is acknowledged."""
TEXT_BYTES: Final = 1000
"""The longest text of a failure that is sent."""
KEPT_BYTES: Final = 200
"""What an answer that is not acknowledged takes in memory beyond its body; rounded up."""

_NUMBER: Final = Struct(">Q")
_DELAY: Final = Struct(">I")
_FAILURE: Final = Struct(">QB")


class WrongPeer(MalformedFrame):
    """The connection leads to another process than the link's: one with another ``uid``."""

    def __init__(self, uid: int, expected: int | None = None) -> None:
        """``expected`` is ``None`` if it is no member at all."""
        here = "which is no member" if expected is None else f"where {expected:016x} is expected"
        super().__init__(f"it is process {uid:016x}, {here}")
        self.uid = uid


class Transport(Protocol):
    """A connection: reliable and ordered while it lasts. It must not call its reader from within ``write``."""

    def write(self, data: bytes) -> None:
        """Send bytes. Does nothing after the connection was lost."""

    def close(self) -> None:
        """Close the connection; what was written before is sent."""


class Token(Protocol):
    """Waits for the answer to one assured batch or call."""

    def set(self, value: bytes) -> None:
        """Take the answer."""

    def fail(self, error: Exception) -> None:
        """Take the failure."""


class LinkOwner(Protocol):
    """Takes what arrives. A frame counts as received when the call has returned, and not if it raises."""

    def received(self, sequence: int, batch: bytes, assured: bool) -> None:
        """Take a batch. An assured one is to be answered, under its sequence, at any time."""

    def called(self, sequence: int, body: bytes) -> None:
        """Take a call, which is to be answered under its sequence, at any time."""


@frozen(slots=True)
class LinkLimits:
    """The bounds of a link, in bytes."""

    credit_bytes: int = 4 << 20
    """Batches that may be unacknowledged on the wire. It also bounds the batches that the receiver has not answered:
    above it, the receiver does not acknowledge."""
    queue_bytes: int = 64 << 20
    """Assured batches that are not acknowledged, and the same for calls."""
    answer_bytes: int = 64 << 20
    """Answers that are not acknowledged, each with :data:`KEPT_BYTES`. Above it, a peer that asks on loses its
    connection."""
    max_frame_bytes: int = MAX_FRAME_BYTES


class Link:
    """One end of the link to one process. Its owner attaches connections, one after the other."""

    __slots__ = (
        "_acknowledged",
        "_answer_bytes",
        "_arrived",
        "_call_bytes",
        "_clock",
        "_decoder",
        "_feeding",
        "_flight_bytes",
        "_kept",
        "_limits",
        "_owed",
        "_owed_bytes",
        "_owner",
        "_peer_uid",
        "_ready",
        "_received",
        "_round_trip_s",
        "_sequence",
        "_timer",
        "_transport",
        "_trimmed",
        "_uid",
        "_unanswered",
        "_unconfirmed_bytes",
        "_urgent",
        "_waiting",
        "_waiting_bytes",
        "dropped",
        "resent",
    )

    def __init__(
        self, uid: int, peer_uid: int, owner: LinkOwner, clock: Clock, limits: LinkLimits | None = None
    ) -> None:
        self._uid = uid
        self._peer_uid = peer_uid
        self._owner = owner
        self._clock = clock
        self._limits = limits or LinkLimits()
        self.dropped = 0
        """The number of pushed batches that were dropped here."""
        self.resent = 0
        """The number of frames that were sent again."""
        self._transport: Transport | None = None
        self._decoder: FrameDecoder | None = None
        self._ready = False
        self._feeding = False
        # What is sent: written frames that are not acknowledged, then batches that wait for credit.
        self._sequence = 0
        self._trimmed = 0
        self._kept: deque[tuple[int, int, bytes, float | None]] = deque()
        self._waiting: deque[tuple[bytes, Token]] = deque()
        self._unanswered: dict[int, Token] = {}
        self._flight_bytes = 0
        self._waiting_bytes = 0
        self._call_bytes = 0
        self._answer_bytes = 0
        self._round_trip_s = 0.0
        # What is received: the last sequence, the last that was acknowledged, and what is to be answered.
        self._received = 0
        self._acknowledged = 0
        self._urgent = False
        self._unconfirmed_bytes = 0
        self._arrived = 0.0
        self._timer: Timer | None = None
        self._owed: dict[int, int] = {}
        self._owed_bytes = 0

    @property
    def established(self) -> bool:
        """Whether there is a connection, and the peer has said HELLO."""
        return self._ready

    @property
    def idle(self) -> bool:
        """Whether nothing is unanswered, in both directions."""
        return not (self._unanswered or self._waiting or self._owed)

    def state(self) -> LinkState:
        """Return credit, queued bytes and the round trip: the smoothed time from a batch to its acknowledgement."""
        queued_bytes = self._flight_bytes + self._waiting_bytes
        return LinkState(max(0, self._limits.credit_bytes - queued_bytes), queued_bytes, self._round_trip_s)

    # Connections

    def connected(self, transport: Transport) -> None:
        """Use a new connection. One that is still there is closed."""
        if self._transport is not None:
            self._transport.close()
        self.lost()
        self._transport = transport
        self._decoder = FrameDecoder(HELLO_FRAME_BYTES)
        hello = Hello(LOWEST_VERSION, HIGHEST_VERSION, self._uid, self._peer_uid, self._received)
        transport.write(encode(HELLO, 0, hello.pack()))

    def lost(self) -> None:
        """The connection was lost, or is no longer used. What is unacknowledged is kept for the next one."""
        self._transport = self._decoder = None
        self._ready = False

    def abandon(self) -> list[Token]:
        """End the link: the peer is gone. Returns the tokens of what it has not answered, in order."""
        self.lost()
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        tokens = [*self._unanswered.values(), *(token for _, token in self._waiting)]
        for kept in (self._kept, self._waiting, self._unanswered, self._owed):
            kept.clear()
        self._flight_bytes = self._waiting_bytes = self._call_bytes = self._answer_bytes = self._owed_bytes = 0
        return tokens

    # Sending

    def push(self, batch: bytes) -> bool:
        """Send a best-effort batch. ``False`` if there is no connection or no credit: it is dropped whole."""
        limits = self._limits
        size = len(batch)
        credit_bytes = limits.credit_bytes - self._flight_bytes - self._waiting_bytes
        if not self._ready or not 0 < credit_bytes >= size or size > limits.max_frame_bytes - HEADER_BYTES:
            self.dropped += 1
            return False
        self._flight_bytes += size + HEADER_BYTES
        self._transmit(PUSH, batch)
        return True

    def deliver(self, batch: bytes, token: Token) -> None:
        """Send an assured batch; ``token`` gets the answer, or what :meth:`abandon`'s caller gives it.

        Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` above ``queue_bytes``, and for a batch larger than a
        frame.
        """
        self._check_size(batch)
        size = len(batch) + HEADER_BYTES
        queued_bytes = self._flight_bytes + self._waiting_bytes
        if queued_bytes and queued_bytes + size > self._limits.queue_bytes:
            raise ServiceUnavailable(f"{queued_bytes} bytes wait for process {self._peer_uid:016x} already")
        if self._ready and not self._waiting and self._has_credit(size):
            self._flight_bytes += size
            self._unanswered[self._sequence + 1] = token
            self._transmit(DELIVER, batch)
        else:
            self._waiting.append((batch, token))
            self._waiting_bytes += size

    def call(self, body: bytes, token: Token, share: float | None = 1.0) -> int:
        """Send a control message; ``token`` gets the answer. Calls are in order, and pass batches without credit.

        Returns the number for :meth:`withdraw`. Raises :class:`~kinmqtt_spi.errors.ServiceUnavailable` if all calls
        have more than a ``share`` of ``queue_bytes``, unless it is ``None``; and for a message larger than a frame.
        """
        self._check_size(body)
        size = len(body) + HEADER_BYTES
        if share is not None and self._call_bytes and self._call_bytes + size > share * self._limits.queue_bytes:
            raise ServiceUnavailable(f"{self._call_bytes} bytes wait for process {self._peer_uid:016x} already")
        self._call_bytes += size
        self._unanswered[self._sequence + 1] = token
        self._transmit(CALL, body)
        return self._sequence

    def withdraw(self, number: int) -> None:
        """Forget a call that is not answered: it is not sent again, and its token gets nothing.

        The peer has it if it has arrived. The numbers of frames may have gaps.
        """
        if self._unanswered.pop(number, None) is None:
            return
        kept = self._kept
        position = bisect_left(kept, number, key=_number_of)
        if position < len(kept) and kept[position][0] == number:
            self._call_bytes -= len(kept[position][2]) + HEADER_BYTES
            del kept[position]

    def answer(self, sequence: int, data: bytes) -> None:
        """Answer an assured batch or a call. Does nothing for one that was answered already."""
        if len(data) > self._limits.max_frame_bytes - HEADER_BYTES - _NUMBER.size:
            self.fail(sequence, ServiceUnavailable(f"the answer has {len(data)} bytes, more than a frame"))
        elif self._settle(sequence):
            self._reply(ANSWER, _NUMBER.pack(sequence) + data)

    def fail(self, sequence: int, error: ServiceUnavailable) -> None:
        """Answer that an assured batch or a call failed. The other side raises the text, cut to 1,000 bytes."""
        if self._settle(sequence):
            text = str(error).encode(errors="replace")[:TEXT_BYTES]
            self._reply(FAILURE, _FAILURE.pack(sequence, error.reason) + text)

    def _reply(self, kind: int, body: bytes) -> None:
        self._answer_bytes += len(body) + KEPT_BYTES
        self._transmit(kind, body)
        self._confirm()

    def _check_size(self, body: bytes) -> None:
        if len(body) > self._limits.max_frame_bytes - HEADER_BYTES:
            raise ServiceUnavailable(
                f"{len(body)} bytes are more than a frame of the cluster takes", ReasonCode.PACKET_TOO_LARGE
            )

    def _has_credit(self, size: int) -> bool:
        # A batch above the credit goes alone.
        return not self._flight_bytes or self._flight_bytes + size <= self._limits.credit_bytes

    def _settle(self, sequence: int) -> bool:
        size = self._owed.pop(sequence, None)
        if size is None:
            return False
        self._owed_bytes -= size
        return True

    def _transmit(self, kind: int, body: bytes) -> None:
        self._sequence = sequence = self._sequence + 1
        self._kept.append((sequence, kind, body, self._clock.monotonic()))
        if self._ready and self._transport is not None:
            frame = encode(kind, sequence, body)
            self._transport.write(self._acknowledgement() + frame if self._urgent and self._is_overdue() else frame)

    def _pump(self) -> None:
        waiting = self._waiting
        while waiting and self._ready and self._has_credit(size := len(waiting[0][0]) + HEADER_BYTES):
            batch, token = waiting.popleft()
            self._waiting_bytes -= size
            self._flight_bytes += size
            self._unanswered[self._sequence + 1] = token
            self._transmit(DELIVER, batch)

    # Receiving

    def feed(self, data: bytes) -> None:
        """Take bytes of the connection, and call the owner.

        Raises :class:`~kinmqtt_spi.mesh.frames.MalformedFrame`, and what the owner raises. In both cases close the
        connection and call :meth:`lost`: the peer sends again what was not received.
        """
        decoder = self._decoder
        if decoder is None:
            return
        self._feeding = True
        self._arrived = self._clock.monotonic()
        try:
            frame = decoder.single(data)
            for kind, sequence, body in decoder.feed(data) if frame is None else (frame,):
                if not self._ready:
                    self._greeted(kind, body, decoder)
                elif kind == ACK:
                    self._trim(sequence, _DELAY.unpack_from(body)[0] / 1e6 if len(body) >= _DELAY.size else 0.0)
                    self._pump()
                elif kind == HELLO:
                    raise MalformedFrame("a second HELLO")
                elif sequence > self._received:
                    if kind == PUSH:
                        self._owner.received(sequence, body, False)
                    else:
                        self._take(kind, sequence, body)
                    # Only now: what was sent back meanwhile has acknowledged the frames before.
                    self._received = sequence
                    self._unconfirmed_bytes += len(body)
                    self._urgent |= kind < ANSWER or len(body) >= LARGE_ANSWER_BYTES
                if self._decoder is not decoder:  # The owner has lost or replaced the connection.
                    return
        finally:
            self._feeding = False
        self._confirm()

    def _take(self, kind: int, sequence: int, body: bytes) -> None:
        if kind >= ANSWER:
            self._answered(kind, body)
            return
        if self._answer_bytes > self._limits.answer_bytes:
            raise MalformedFrame(f"the peer acknowledges no answer, and {self._answer_bytes} bytes of them are kept")
        size = len(body) + HEADER_BYTES
        self._owed[sequence] = size
        self._owed_bytes += size
        try:
            if kind == DELIVER:
                self._owner.received(sequence, body, True)
            else:
                self._owner.called(sequence, body)
        except BaseException:
            if not self._settle(sequence):
                self._received = sequence  # It is answered, and must not come again.
            raise

    def _answered(self, kind: int, body: bytes) -> None:
        if kind == ANSWER:
            if len(body) < _NUMBER.size:
                raise MalformedFrame(f"an ANSWER of {len(body)} bytes")
            token = self._unanswered.pop(_NUMBER.unpack_from(body)[0], None)
            if token is not None:
                token.set(body[_NUMBER.size :])
            return
        if len(body) < _FAILURE.size:
            raise MalformedFrame(f"a FAILURE of {len(body)} bytes")
        sequence, reason = _FAILURE.unpack_from(body)
        token = self._unanswered.pop(sequence, None)
        if token is not None:
            text = body[_FAILURE.size :].decode(errors="replace")
            known = reason in ReasonCode.__members__.values()
            token.fail(ServiceUnavailable(text, ReasonCode(reason) if known else ReasonCode.SERVER_UNAVAILABLE))

    def _greeted(self, kind: int, body: bytes, decoder: FrameDecoder) -> None:
        if kind != HELLO:
            raise MalformedFrame(f"a frame of type {kind} before HELLO")
        hello = Hello.unpack(body)
        if hello.lowest > HIGHEST_VERSION or hello.highest < LOWEST_VERSION:
            raise MalformedFrame(
                f"the peer speaks versions {hello.lowest} to {hello.highest} of the link, "
                f"this node {LOWEST_VERSION} to {HIGHEST_VERSION}"
            )
        if hello.uid != self._peer_uid:
            raise WrongPeer(hello.uid, self._peer_uid)
        if hello.peer_uid != self._uid:
            raise MalformedFrame(f"the peer expects process {hello.peer_uid:016x}, not {self._uid:016x}")
        if not self._trimmed <= hello.received <= self._sequence:
            raise MalformedFrame(
                f"the peer has frame {hello.received}, of {self._sequence} with {self._trimmed} acknowledged"
            )
        decoder.limit_bytes = self._limits.max_frame_bytes
        # HELLO has acknowledged all that was received, and measures no round trip.
        self._acknowledged = self._received
        self._urgent = False
        self._unconfirmed_bytes = 0
        self._resume(hello.received)

    def _resume(self, received: int) -> None:
        """Send again what the peer does not have, but no best-effort batch."""
        self._kept = deque((sequence, kind, body, None) for sequence, kind, body, _ in self._kept)
        self._trim(received)
        kept = self._kept
        self._kept = deque()
        self._ready = True
        for entry in kept:
            sequence, kind, body, _ = entry
            if kind == PUSH:
                self._flight_bytes -= len(body) + HEADER_BYTES
                self.dropped += 1
                continue
            self._kept.append(entry)
            self.resent += 1
            if self._transport is not None:
                self._transport.write(encode(kind, sequence, body))
        self._pump()

    def _trim(self, received: int, delay_s: float = 0.0) -> None:
        """Forget what the peer has received; ``delay_s`` is how long it kept the acknowledgement back."""
        if received > self._sequence:
            raise MalformedFrame(f"the peer acknowledges frame {received}, of {self._sequence}")
        kept = self._kept
        sent_at: float | None = None
        while kept and kept[0][0] <= received:
            _, kind, body, sent_at = kept.popleft()
            if kind <= DELIVER:  # PUSH or DELIVER.
                self._flight_bytes -= len(body) + HEADER_BYTES
            elif kind == CALL:
                self._call_bytes -= len(body) + HEADER_BYTES
            else:
                self._answer_bytes -= len(body) + KEPT_BYTES
        self._trimmed = max(self._trimmed, received)
        if sent_at is not None:
            sample_s = max(0.0, self._clock.monotonic() - sent_at - delay_s)
            self._round_trip_s += (sample_s - self._round_trip_s) / (8 if self._round_trip_s else 1)

    def _confirm(self) -> None:
        """Acknowledge what was received, now or soon, unless too much of it is unanswered."""
        unconfirmed = self._received - self._acknowledged
        if self._feeding or not unconfirmed:
            return
        if unconfirmed >= LAZY_FRAMES or self._unconfirmed_bytes * LAZY_SHARE >= self._limits.credit_bytes:
            if self._may_acknowledge():
                self._acknowledge()
        elif self._urgent and self._timer is None and self._may_acknowledge():
            self._timer = self._clock.later(LAZY_S, self._acknowledge_late)

    def _acknowledge_late(self) -> None:
        self._timer = None
        if self._is_overdue() and self._may_acknowledge():
            self._acknowledge()

    def _is_overdue(self) -> bool:
        """Tell whether something is to be acknowledged by the next frame that goes back."""
        return self._urgent and self._received != self._acknowledged and self._owed_bytes <= self._limits.credit_bytes

    def _may_acknowledge(self) -> bool:
        return self._ready and self._transport is not None and self._owed_bytes <= self._limits.credit_bytes

    def _acknowledge(self) -> None:
        if self._transport is not None:
            self._transport.write(self._acknowledgement())

    def _acknowledgement(self) -> bytes:
        """Return the frame that acknowledges all that was received; it says how long that was kept back."""
        self._urgent = False
        self._acknowledged = self._received
        self._unconfirmed_bytes = 0
        delay_us = int(min(max(0.0, self._clock.monotonic() - self._arrived) * 1e6, 0xFFFFFFFF))
        return encode(ACK, self._received, _DELAY.pack(delay_us))


def _number_of(kept: tuple[int, int, bytes, float | None]) -> int:
    return kept[0]
