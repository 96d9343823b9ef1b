"""Where packets for one connection gather during a reactor turn.

The message path appends to a list, and notes the outbox down as dirty where that was empty. The turn's end flushes
those. A session whose client is away, or too slow for QoS 0, has one that counts and forgets: whoever fans a message
out need not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from kinmqtt.broker.statistics import Statistics


LARGE_PIECES: Final = 128
LARGE_BYTES: Final = 16 << 10
"""What it takes for an outbox to have much: pieces, or bytes as far as its first and last piece tell."""


class Outbox:
    """What goes out when the turn ends; this one forgets it.

    It takes the place of that of a connection that is gone, and so parts the two: a circle of references would stay
    in memory until the garbage collector looks at what is old.
    """

    __slots__ = ("packets",)

    def __init__(self) -> None:
        self.packets: list[bytes] = []
        """Packets, or pieces of them: whoever adds to an empty list notes the outbox down as dirty."""

    @property
    def name(self) -> str:
        """Whose it is, for log lines."""
        return "nobody"

    @property
    def is_large(self) -> bool:
        """Whether there is much to send; no exact answer, which would cost as much as to send it."""
        packets = self.packets
        pieces = len(packets)
        if not pieces or pieces > LARGE_PIECES:
            return True  # Empty it is where more goes out of what waits for the socket.
        return pieces * len(packets[-1]) > LARGE_BYTES or len(packets[0]) > LARGE_BYTES

    def flush(self) -> None:
        """The turn is over."""
        self.packets.clear()


class Discard(Outbox):
    """Takes whole QoS 0 packets for clients that can't have them now, and counts them as dropped."""

    __slots__ = ("_dropped", "_sent")

    def __init__(self, statistics: Statistics, why: str) -> None:
        super().__init__()
        self._dropped = statistics.dropped[why]
        self._sent = statistics.messages_sent

    def flush(self) -> None:
        """Count what came, and forget it; whoever fanned it out counted it as sent with all the others."""
        dropped = len(self.packets)
        self.packets.clear()
        self._dropped.value += dropped
        self._sent.value -= dropped
