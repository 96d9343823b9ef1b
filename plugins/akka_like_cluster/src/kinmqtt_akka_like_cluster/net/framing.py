"""Frames of a control connection, and of the handshake: ``u32 length · u8 type · u64 sequence · body``, big-endian.

The header is that of :mod:`kinmqtt_spi.mesh.frames`; the types are those of whoever reads. The length is the body's.
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from struct import Struct
from typing import Final, NamedTuple

from kinmqtt_spi.mesh.frames import MAX_FRAME_BYTES, MalformedFrame

_HEADER: Final = Struct(">IBQ")
HEADER_BYTES: Final = _HEADER.size
_LENGTH_BYTES: Final = 4


class Frame(NamedTuple):
    """One frame."""

    kind: int
    sequence: int
    body: bytes


def encode(kind: int, sequence: int, body: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _HEADER.pack(len(body), kind, sequence) + body


class FrameDecoder:
    """Cuts a stream of bytes into frames, whatever pieces it arrives in."""

    __slots__ = ("_buffer", "_kinds", "_limit_bytes")

    def __init__(self, kinds: Container[int], limit_bytes: int = MAX_FRAME_BYTES) -> None:
        """``kinds`` are the known types; ``limit_bytes`` is the limit of a frame, header included."""
        self._kinds = kinds
        self._limit_bytes = limit_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Take bytes, and return the frames that are complete now.

        The iterator may be left before its end; the next call returns what it has not. It raises
        :class:`~kinmqtt_spi.mesh.frames.MalformedFrame` after the last valid frame, as soon as a length is above the
        limit or a type is unknown. At most one frame within the limit, and the piece fed last, are buffered.
        """
        self._buffer += data
        return self._frames()

    def rest(self) -> bytes:
        """Return what follows the last frame, and forget it."""
        rest = bytes(self._buffer)
        self._buffer.clear()
        return rest

    def _frames(self) -> Iterator[Frame]:
        buffer = self._buffer
        while len(buffer) >= _LENGTH_BYTES:
            needed = HEADER_BYTES + int.from_bytes(buffer[:_LENGTH_BYTES])
            if needed > self._limit_bytes:
                raise MalformedFrame(f"a frame of {needed} bytes, above {self._limit_bytes}")
            if len(buffer) > _LENGTH_BYTES and buffer[_LENGTH_BYTES] not in self._kinds:
                raise MalformedFrame(f"a frame of the unknown type {buffer[_LENGTH_BYTES]}")
            if len(buffer) < needed:
                return
            _, kind, sequence = _HEADER.unpack_from(buffer)
            body = bytes(memoryview(buffer)[HEADER_BYTES:needed])
            del buffer[:needed]
            yield Frame(kind, sequence, body)
