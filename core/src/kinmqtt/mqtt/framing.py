"""Splits a stream of bytes into MQTT packets (fixed header, MQTT 5.0 section 2.1; section 2.2 in 3.1.1).

The framer reads only the packet's length; flags, types and contents are decoded by the codec. If more bytes are
needed it returns an empty list. A violation is stored in :attr:`Framer.error`, so that the valid packets before it
are not lost. :attr:`Framer.begun` is the first byte of an incomplete packet, by which some can be refused early.
"""

from __future__ import annotations

import sys
from typing import Final

from kinmqtt.mqtt.errors import MalformedPacket, PacketTooLarge, RemoteError

LARGEST_PACKET: Final = 268_435_455 + 5
"""The size in bytes of the largest packet that MQTT can express, its fixed header included."""

UNLIMITED: Final = sys.maxsize

PIECE_BYTES: Final = 64
"""Overhead of a stored piece: very many small ones may arrive before they are split."""

_CONTINUED: Final = 0x80
_LARGEST_HEADER: Final = 5


class Framer:
    """Splits the data of one peer into packets.

    ``max_packet_bytes`` counts the whole packet with its fixed header, as Maximum Packet Size does (MQTT 5.0 section
    3.1.2.11.4). It may change between two calls of :meth:`feed`, and applies to the headers read after that.
    ``most_frames`` bounds the packets that one call returns: a read may contain more than a hundred thousand.
    """

    __slots__ = (
        "_beyond",
        "_held",
        "_later",
        "_later_bytes",
        "_most",
        "_uncut",
        "_uncut_at",
        "_wanted",
        "error",
        "max_packet_bytes",
    )

    def __init__(self, max_packet_bytes: int = LARGEST_PACKET, most_frames: int = UNLIMITED) -> None:
        self.max_packet_bytes = max_packet_bytes
        self.error: RemoteError | None = None
        self._most = most_frames
        self._later: list[bytes] | None = None
        self._later_bytes = 0
        # The data after the packets of one call, and the offset of the next packet in it.
        self._uncut: bytes | None = None
        self._uncut_at = 0
        self._held: bytearray | None = None
        # The size of the incomplete packet, or 0 while its length is unknown.
        self._wanted = 0
        # The data from a packet that was too large on, until a higher limit may allow it.
        self._beyond: bytes | None = None

    def allow(self, max_packet_bytes: int) -> list[tuple[bytes, int]]:
        """Change the maximum size; return packets that have arrived already and were too large before."""
        frames: list[tuple[bytes, int]] = []
        self.max_packet_bytes = max_packet_bytes
        beyond, self._beyond = self._beyond, None
        if beyond is not None and isinstance(self.error, PacketTooLarge):
            self.error = None
            self._scan(beyond, 0, frames)
        return frames

    @property
    def begun(self) -> int:
        """The first byte of the incomplete packet; -1 if there is none."""
        return -1 if self._held is None else self._held[0]

    @property
    def is_behind(self) -> bool:
        """Whether stored data may contain complete packets; ``feed(b"")`` continues with them."""
        return self._uncut is not None or self._later is not None

    def hold(self, data: bytes) -> None:
        """Store data for later calls of :meth:`feed`."""
        if self.error is not None:
            return
        if self._later is None:
            self._later = []
            self._later_bytes = 0
        self._later.append(data)
        self._later_bytes += len(data)

    @property
    def buffered_bytes(self) -> int:
        """The stored size of an incomplete packet."""
        return 0 if self._held is None else len(self._held)

    @property
    def missing_bytes(self) -> int:
        """The missing size of the incomplete packet, as far as its length is known."""
        return 0 if self._held is None else max(0, self._wanted - len(self._held))

    @property
    def held_bytes(self) -> int:
        """The size of all stored data: incomplete packets, unsplit data, and data from a packet too large on."""
        held = 0 if self._held is None else len(self._held)
        if self._uncut is not None:
            held += len(self._uncut)
        if self._later is not None:
            held += self._later_bytes + PIECE_BYTES * len(self._later)
        return held if self._beyond is None else held + len(self._beyond)

    def forget(self) -> None:
        """Drop all stored data."""
        self._held = None
        self._uncut = self._later = None
        self._wanted = 0
        self._beyond = None

    def feed(self, data: bytes) -> list[tuple[bytes, int]]:
        """Return the packets that ``data`` completes, in order, each with the offset of its body (2 to 5).

        If there are more than one call returns, :attr:`is_behind` is true. After a violation :attr:`error` is set,
        and every later call returns an empty list.
        """
        frames: list[tuple[bytes, int]] = []
        if self.error is not None:
            return frames
        if self._later is not None:
            # Join once: joining each of very many small pieces would copy all stored data each time.
            later = self._later
            self._later = None
            if data:
                later.append(data)
            data = later[0] if len(later) == 1 else b"".join(later)
        uncut = self._uncut
        if uncut is not None:
            start = self._uncut_at
            self._uncut = None
            if data:
                uncut = uncut[start:] + data
                start = 0
            self._scan(uncut, start, frames)
        elif self._held is None:
            self._scan(data, 0, frames)
        elif self._wanted:
            self._complete(self._held, data, frames)
        else:
            # At most four bytes of a header are stored here, so joining copies the chunk once.
            joined = bytes(self._held) + data
            self._held = None
            self._scan(joined, 0, frames)
        return frames

    def _complete(self, held: bytearray, data: bytes, frames: list[tuple[bytes, int]]) -> None:
        """Add to the incomplete packet; the rest of the chunk is split in place, without a copy."""
        missing = self._wanted - len(held)
        if len(data) < missing:
            held += data
            return
        held += data[:missing]
        frame = bytes(held)
        self._held = None
        self._wanted = 0
        frames.append((frame, _body_offset(frame)))
        if len(data) > missing:
            self._scan(data, missing, frames)

    def _scan(self, data: bytes, start: int, frames: list[tuple[bytes, int]]) -> None:
        """Split packets from ``data[start:]``: the hot loop, with the short lengths unrolled."""
        append = frames.append
        limit = self.max_packet_bytes
        most = self._most
        available = len(data)
        end = start
        while available - start >= 2:
            if len(frames) >= most:
                self._uncut = data
                self._uncut_at = start
                return
            body = 2
            length = data[start + 1]
            if length > 127:
                if available - start < 3:
                    break
                second = data[start + 2]
                if 0 < second < 128:
                    body = 3
                    length += (second << 7) - 128
                else:
                    body, length = self._long_length(data, start)
                    if not body:
                        break
            end = start + body + length
            if end - start > limit:
                text = f"a packet of {end - start} bytes; at most {limit} are accepted"
                self._refuse(PacketTooLarge(text, "MQTT-3.2.2-15"))
                self._beyond = data[start:]
                return
            if end > available:
                self._wanted = end - start
                break
            append((data[start:end], body))
            start = end
        if start < available and self.error is None:
            self._held = bytearray(data[start:])

    def _long_length(self, data: bytes, start: int) -> tuple[int, int]:
        """Read any Remaining Length: (body offset, length), or (0, 0) if it is incomplete or wrong."""
        length = 0
        for offset in range(1, min(_LARGEST_HEADER, len(data) - start)):
            byte = data[start + offset]
            length |= (byte & 0x7F) << 7 * (offset - 1)
            if byte < _CONTINUED:
                if not byte and offset > 1:
                    # MQTT 3.1.1 has no such statement, though its algorithm never pads. The version of a stream is
                    # unknown until its CONNECT is complete, so one rule applies to all versions.
                    self._refuse(
                        MalformedPacket("the Remaining Length uses more bytes than it needs", "MQTT-1.5.5-1")
                    )
                    return 0, 0
                return offset + 1, length
        if len(data) - start >= _LARGEST_HEADER:
            self._refuse(MalformedPacket("the Remaining Length takes more than four bytes", "section 2.1.4"))
        return 0, 0

    def _refuse(self, error: RemoteError) -> None:
        self.error = error
        self._held = None
        self._uncut = self._later = None
        self._wanted = 0


def _body_offset(frame: bytes) -> int:
    """Return the body's offset in a complete packet with a checked header."""
    offset = 1
    while frame[offset] >= _CONTINUED:
        offset += 1
    return offset + 1
