"""Where packets for one connection gather during a reactor turn.

An outbox is a list of byte strings, so that the message path appends and does nothing else. A session whose client
is away, or too slow for QoS 0, has a stand-in that counts and forgets: whoever fans out a message need not ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from kinmqtt.broker.connection import Connection
    from kinmqtt.broker.statistics import Statistics


LARGE_PIECES: Final = 128
LARGE_BYTES: Final = 16 << 10
"""What it takes for an outbox to have much: pieces, or bytes as far as its first and last piece tell."""


class Outbox(list[bytes]):
    """What goes out on a connection when the turn ends."""

    __slots__ = ("connection",)

    def __init__(self, connection: Connection) -> None:
        super().__init__()
        self.connection = connection

    @property
    def is_large(self) -> bool:
        """Whether there is much to send; no exact answer, which would cost as much as to send it."""
        pieces = len(self)
        if not pieces or pieces > LARGE_PIECES:
            return True  # Empty it is where more goes out of what waits for the socket.
        return pieces * len(self[-1]) > LARGE_BYTES or len(self[0]) > LARGE_BYTES


class Closed(Outbox):
    """Stands in for the outbox of a connection that is gone, and so parts the two: a circle of references would stay
    in memory until the garbage collector looks at what is old.

    It is never empty, and takes nothing.
    """

    __slots__ = ()

    def __init__(self) -> None:
        list.__init__(self, [b""])

    def append(self, packet: bytes) -> None:
        """Nobody is there to get it."""

    def extend(self, packets: Any) -> None:
        """Nobody is there to get them."""

    def clear(self) -> None:
        """Stay as it is."""


CLOSED: Final = Closed()


class Discard(Outbox):
    """Takes QoS 0 packets for a client that can't have them now, and counts them as dropped.

    It is never empty, so that nobody notes it down as having something to send.
    """

    __slots__ = ("_dropped", "_sent")

    def __init__(self, statistics: Statistics, why: str) -> None:
        list.__init__(self, [b""])
        self._dropped = statistics.dropped[why]
        self._sent = statistics.messages_sent

    def append(self, packet: bytes) -> None:
        """Count one packet, and forget it; whoever fans out counts it as sent with all the others."""
        self._dropped.value += 1
        self._sent.value -= 1
