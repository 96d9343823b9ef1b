"""Output that waits for one client's socket, in pieces shared between clients.

A message to many clients is one object in many buffers. Joining pieces would copy it for each client, so pieces wait
as they are and are joined only when they are sent, a few at a time.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from kinmqtt.broker.buffers import Buffers

JOINED_BYTES: Final = 512
"""Pieces smaller than this are joined with their neighbours: holding each costs more than a copy."""

_QOS_0: Final = 0x30


class Unsent:
    """Pieces of output in order, counted in the output of all connections."""

    __slots__ = ("_at", "_buffers", "_pieces")

    def __init__(self, buffers: Buffers) -> None:
        self._buffers = buffers
        self._pieces: deque[bytes] = deque()
        self._at = 0
        """How many bytes of the first piece are taken."""

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: list[bytes]) -> None:
        """Append pieces."""
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
        """Remove and return the next bytes, at most ``at_once``; there must be some."""
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
        """Returns all waiting pieces, which stay counted."""
        pieces = list(self._pieces)
        if self._at:
            pieces[0] = pieces[0][self._at :]
        return pieces

    def clear(self) -> None:
        """Discard all waiting pieces."""
        for piece in self._pieces:
            self._buffers.release_piece(piece)
        self._pieces.clear()
        self._at = 0

    def _append(self, piece: bytes) -> None:
        if piece:
            self._pieces.append(piece)
            self._buffers.hold_piece(piece)


def size_of(pieces: list[bytes]) -> int:
    """Returns the total size of pieces in bytes."""
    size = 0
    for piece in pieces:
        size += len(piece)
    return size


def without_qos_0(pieces: list[bytes]) -> tuple[list[bytes], int]:
    """Returns a buffer's pieces without its QoS 0 PUBLISH packets, and the number of those.

    A packet has one or several pieces; its fixed header is in the first. A run of QoS 0 packets may be one piece.
    """
    left: list[bytes] = []
    dropped = 0
    position = 0
    while position < len(pieces):
        start = position
        if not pieces[position]:
            position += 1  # The empty payload of the packet before.
            continue
        size = _packet_size(pieces[position])
        while size > 0 and position < len(pieces):
            size -= len(pieces[position])
            position += 1
        if pieces[start][0] & 0xF6 == _QOS_0:
            dropped += 1 if size >= 0 else _packets_in(pieces[start])
        else:
            left.extend(pieces[start:position])
    return left, dropped


def _packets_in(piece: bytes) -> int:
    """Returns the number of packets in a piece that has several."""
    count = offset = 0
    while offset < len(piece):
        offset += _packet_size(piece, offset)
        count += 1
    return count


def _packet_size(piece: bytes, start: int = 0) -> int:
    """Returns the size of the packet that begins in a piece, from its fixed header (MQTT 5.0 section 2.1.4)."""
    length = shift = 0
    offset = start + 1
    while True:
        byte = piece[offset]
        length |= (byte & 0x7F) << shift
        offset += 1
        if byte < 0x80:
            return offset + length - start
        shift += 7
