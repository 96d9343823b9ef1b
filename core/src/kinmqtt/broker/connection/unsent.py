"""What waits for one client's socket, in pieces that are not copied for each client.

A message to many is one object in many outboxes. Joined for each of them it would be there as many times; so what a
socket does not take at once waits as it is, and is joined only as it goes out, a little at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kinmqtt.broker.buffers import Buffers

JOINED_BYTES: Final = 512
"""Pieces smaller than this are joined with their neighbours: to hold them one by one costs more than a copy."""

_QOS_0: Final = 0x30


class Unsent:
    """Pieces of output in order; every byte is counted among what all connections hold."""

    __slots__ = ("_at", "_buffers", "_pieces")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._pieces: deque[bytes] = deque()
        self._at = 0
        """How much of the first piece has been taken."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: list[bytes]) -> None:
        """Have these wait, behind what waits."""
        small: list[bytes] = []
        for piece in pieces:
            if len(piece) < JOINED_BYTES:
                small.append(piece)
                continue
            self._append(b"".join(small))
            small.clear()
            self._append(piece)
        self._append(b"".join(small))

    def take(self, at_once: int) -> bytes:
        """The next bytes, ``at_once`` at most; they count no longer. There must be some."""
        pieces = self._pieces
        first = pieces[0]
        if len(first) - self._at > at_once:
            data = first[self._at : self._at + at_once]
            self._at += at_once
            return data
        taken: list[bytes] = []
        size = 0
        while pieces and size + len(pieces[0]) - self._at <= at_once:
            piece = pieces.popleft()
            self._buffers.release_piece(piece)
            part = piece[self._at :] if self._at else piece
            self._at = 0
            size += len(part)
            taken.append(part)
        return taken[0] if len(taken) == 1 else b"".join(taken)

    def rest(self) -> list[bytes]:
        """All that waits, in pieces; it goes on to count."""
        pieces = list(self._pieces)
        if self._at:
            pieces[0] = pieces[0][self._at :]
        return pieces

    def clear(self) -> None:
        """Forget all that waits."""
        for piece in self._pieces:
            self._buffers.release_piece(piece)
        self._pieces.clear()
        self._at = 0

    def _append(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._buffers.hold_piece(piece)


def size_of(pieces: list[bytes]) -> int:
    """The bytes of all pieces together."""
    size = 0
    for piece in pieces:
        size += len(piece)
    return size


def without_qos_0(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """An outbox's pieces but for its PUBLISH packets of QoS 0; and how many those are.

    A packet may be one piece or several; its fixed header is in the first.
    """
    left: list[bytes] = []
    dropped = 0
    position = 0
    while position < len(pieces):
        start = position
        if not pieces[position]:
            position += 1  # The payload of the packet before, which has none.
            continue
        size = _packet_size(pieces[position])
        while size > 0 and position < len(pieces):
            size -= len(pieces[position])
            position += 1
        if pieces[start][0] & 0xF6 == _QOS_0:
            dropped += 1
        else:
            left.extend(pieces[start:position])
    return left, dropped


def _packet_size(piece: bytes) -> int:
    """The size of the packet that begins with a piece, by its fixed header (MQTT 5.0 section 2.1.4)."""
    length = shift = 0
    offset = 1
    while True:
        byte = piece[offset]
        length |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return offset + length
        shift += 7
