"""How long one packet may take to arrive.

A packet has its time from its first byte on. A large one over a slow link may need longer, and gets it for as long as
it keeps coming: at least 64 KiB of it in each such time. So bytes that trickle, or that stop, are not held for ever,
and nobody needs to know how fast a client's link is.
"""

from __future__ import annotations

from math import ceil
from typing import Final

ENOUGH_BYTES: Final = 64 << 10
"""A packet of which so much has come in its time gets as much time again."""

_OVER: Final = -1


class PacketDeadline:
    """The time of the packet that arrives on one connection, in seconds of the wheel."""

    __slots__ = ("_began", "_limit_s", "_seen_bytes", "due")

    def __init__(self, now: int, limit_s: float) -> None:
        """A packet begins to arrive."""
        # Wherever between two turns of the wheel it begins, it has its time in full.
        self._limit_s = ceil(limit_s) + 1
        self._began = now
        self._seen_bytes = 0
        self.due = now + self._limit_s
        """When it is to be looked at."""

    def more_arrived(self, now: int, anew: bool) -> None:
        """More has come; ``anew`` says that it is of another packet."""
        if anew or self._began == _OVER:
            self._began = now
            self._seen_bytes = 0

    def complete(self) -> None:
        """The packet is complete, and no other has begun."""
        self._began = _OVER

    def may_continue(self, now: int, bytes_there: int, listening: bool) -> bool:
        """Whether the packet, of which there is so much, may take longer; if so, :attr:`due` says until when.

        ``listening`` says that the broker has read what came: where it did not, the client is not to blame.
        """
        if now < self._began + self._limit_s:
            self.due = self._began + self._limit_s
            return True
        enough = bytes_there - self._seen_bytes >= ENOUGH_BYTES
        self.restart(now, bytes_there)
        return enough or not listening

    def restart(self, now: int, bytes_there: int) -> None:
        """The packet, of which there is so much, has its time in full from now on."""
        self._began = now
        self._seen_bytes = bytes_there
        self.due = now + self._limit_s
