"""Frames of a link: ``u32 length · u8 type · u64 sequence · body``, big-endian; the length is that of the body."""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct, error
from typing import Final

from attrs import frozen

from kinmqtt_spi.errors import SpiError

MAX_FRAME_BYTES: Final = 16 << 20
"""The default limit of a frame, header included."""
HELLO_FRAME_BYTES: Final = 1024
"""The limit of the first frame of a connection: noise is detected before much of it is buffered."""

HELLO: Final = 1
"""The first frame of each side; see :class:`Hello`."""
ACK: Final = 2
"""All frames up to ``sequence`` were received: ``u32 microseconds since the last of them``, which may be absent.

It has no number of its own."""
PUSH: Final = 3
"""A best-effort batch."""
DELIVER: Final = 4
"""An assured batch, which is answered."""
CALL: Final = 5
"""A control message, which is answered."""
ANSWER: Final = 6
"""The answer to an assured batch or a call: ``u64 sequence of the question · answer``."""
FAILURE: Final = 7
"""The failure of an assured batch or a call: ``u64 sequence of the question · u8 reason · UTF-8 text``."""

_HEADER: Final = Struct(">IBQ")
HEADER_BYTES: Final = _HEADER.size
_HELLO: Final = Struct(">4sHHQQQ")
_MAGIC: Final = b"kmqm"
_pack = _HEADER.pack
_unpack_from = _HEADER.unpack_from


class MalformedFrame(SpiError):
    """The peer sent something that is no frame, or that does not belong here. The owner closes the connection."""


def encode(kind: int, sequence: int, body: bytes = b"") -> bytes:
    """Return a frame as bytes."""
    return _pack(len(body), kind, sequence) + body


@frozen(slots=True)
class Hello:
    """The body of HELLO. Later versions may append to it."""

    lowest: int
    """The lowest version of the protocol that the sender speaks."""
    highest: int
    uid: int
    """The sender's uid."""
    peer_uid: int
    """The uid of the process that the sender expects."""
    received: int
    """The last sequence that the sender has received from that process."""

    def pack(self) -> bytes:
        """Return the body of the frame."""
        return _HELLO.pack(_MAGIC, self.lowest, self.highest, self.uid, self.peer_uid, self.received)

    @classmethod
    def unpack(cls, body: bytes) -> Hello:
        """Read the body of the frame. Raises :class:`MalformedFrame`."""
        try:
            magic, *values = _HELLO.unpack_from(body)
        except error as problem:
            raise MalformedFrame(f"a HELLO of {len(body)} bytes") from problem
        if magic != _MAGIC:
            raise MalformedFrame("a HELLO of another protocol")
        return cls(*values)


class FrameDecoder:
    """Cuts a stream of bytes into frames, whatever pieces it arrives in."""

    __slots__ = ("_needed", "_pieces", "_size", "limit_bytes")

    def __init__(self, limit_bytes: int = MAX_FRAME_BYTES) -> None:
        self.limit_bytes = limit_bytes
        """The limit of a frame, header included. It may be changed between two frames."""
        self._pieces: list[bytes] = []
        self._size = 0
        self._needed = HEADER_BYTES

    def single(self, data: bytes) -> tuple[int, int, bytes] | None:
        """Return the frame that the data is if it is one valid frame and nothing else; it has been taken then.

        ``None`` if it is not, or if a frame is incomplete: for :meth:`feed`. A read mostly has one batch.
        """
        size = len(data)
        if self._pieces or size < HEADER_BYTES or size > self.limit_bytes:
            return None
        length, kind, sequence = _unpack_from(data)
        if size != HEADER_BYTES + length or not HELLO <= kind <= FAILURE or type(data) is not bytes:
            return None
        return kind, sequence, data[HEADER_BYTES:]

    def feed(self, data: bytes) -> Iterator[tuple[int, int, bytes]]:
        """Yield type, sequence and body of each frame that is complete now. Exhaust it before the next call.

        Raises :class:`MalformedFrame` after the last valid frame, as soon as a header is invalid. At most one frame
        within the limit, and the piece that was fed last, are buffered.
        """
        if type(data) is not bytes:
            data = bytes(data)
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return
            data = b"".join(self._pieces)
            self._pieces = []
        offset, size = 0, len(data)
        needed = HEADER_BYTES
        while size - offset >= HEADER_BYTES:
            length, kind, sequence = _unpack_from(data, offset)
            if not HELLO <= kind <= FAILURE:
                raise MalformedFrame(f"a frame of the unknown type {kind}")
            needed = HEADER_BYTES + length
            if needed > self.limit_bytes:
                raise MalformedFrame(f"a frame of {needed} bytes, above {self.limit_bytes}")
            if size - offset < needed:
                break
            body = data[offset + HEADER_BYTES : offset + needed]
            offset += needed
            needed = HEADER_BYTES
            yield kind, sequence, body
        if offset < size:
            self._pieces = [data[offset:] if offset else data]
            self._size = size - offset
            self._needed = needed
