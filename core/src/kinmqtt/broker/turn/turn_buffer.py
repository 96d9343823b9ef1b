"""The buffer of a connection: the packets of one reactor turn.

The message path appends to a list, and marks the buffer as dirty if the list was empty. At the turn's end dirty
buffers are flushed. A session whose client is offline or congested has a buffer that counts and discards, so that
the fan-out needs no check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinmqtt.broker.statistics import Statistics


LARGE_PIECES: Final = 128
LARGE_BYTES: Final = 16 << 10
"""The limits above which a buffer is large: pieces, or bytes estimated from its first and last piece."""


class TurnBuffer:
    """The packets to send when the turn ends; this class discards them.

    It replaces the buffer of a closed connection, which breaks their reference cycle. The cycle would stay in memory
    until a full garbage collection.
    """

    __slots__ = ("packets",)

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        """Packets, pieces of packets, or runs of QoS 0 packets.

        Code that appends to an empty list marks the buffer as dirty.
        """

    @property
    def name(self) -> str:
        """The client's name, for log lines."""
        return "a closed connection"

    @property
    def is_large(self) -> bool:
        """Whether there is much to send; an estimate, because counting would cost as much as sending."""
        packets = self.packets
        pieces = len(packets)
        if not pieces or pieces > LARGE_PIECES:
            return True  # An empty buffer is dirty to continue sending buffered output.
        return pieces * len(packets[-1]) > LARGE_BYTES or len(packets[0]) > LARGE_BYTES

    def append_run(self, packets: bytes, count: int) -> None:
        """Append several QoS 0 packets that are one piece."""
        self.packets.append(packets)

    def flush(self) -> None:
        """Discard the turn's packets."""
        self.packets.clear()


class Discard(TurnBuffer):
    """Discards whole QoS 0 packets for clients that are offline or congested, and counts them as dropped."""

    __slots__ = ("_dropped", "_more", "_sent")

    def __init__(self, statistics: Statistics, why: str) -> None:
        super().__init__()
        self._dropped = statistics.dropped[why]
        self._sent = statistics.messages_sent
        self._more = 0
        """How many packets there are more than pieces."""

    def append_run(self, packets: bytes, count: int) -> None:
        """Append several packets that are one piece."""
        self.packets.append(packets)
        self._more += count - 1

    def flush(self) -> None:
        """Discard the packets and count them as dropped instead of sent, as the fan-out counted them."""
        dropped = len(self.packets) + self._more
        self._more = 0
        self.packets.clear()
        self._dropped.value += dropped
        self._sent.value -= dropped
