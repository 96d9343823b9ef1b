"""The time limit for one packet to arrive.

The time starts with the packet's first byte. A large packet over a slow link gets as much time again while at least
64 KiB arrive in each such time. This ends packets that trickle or stall, whatever the speed of the client's link.
"""

from __future__ import annotations

from math import ceil
from typing import Final

ENOUGH_BYTES: Final = 64 << 10
"""Bytes that must arrive within the time limit for it to start again."""

_OVER: Final = -1


class PacketDeadline:
    """The deadline of the packet that is arriving on one connection, in seconds of the timer wheel."""

    __slots__ = ("_began", "_limit_s", "_seen_bytes", "due")

    def __init__(self, now: int, limit_s: float) -> None:
        """Start the time limit for a packet that begins to arrive."""
        # One more second, because a packet may begin anywhere between two ticks of the wheel.
        self._limit_s = ceil(limit_s) + 1
        self._began = now
        self._seen_bytes = 0
        self.due = now + self._limit_s
        """When to check it."""

    def more_arrived(self, now: int, anew: bool) -> None:
        """Note that bytes arrived; ``anew`` says that they begin another packet."""
        if anew or self._began == _OVER:
            self._began = now
            self._seen_bytes = 0

    def complete(self) -> None:
        """Note that the packet is complete and no other has begun."""
        self._began = _OVER

    def may_continue(self, now: int, bytes_there: int, listening: bool) -> bool:
        """Returns whether the packet may take longer, and sets :attr:`due` if so.

        ``bytes_there`` of it have arrived. ``listening`` is false if the broker paused reading: the client is not at
        fault then.
        """
        if now < self._began + self._limit_s:
            self.due = self._began + self._limit_s
            return True
        enough = bytes_there - self._seen_bytes >= ENOUGH_BYTES
        self.restart(now, bytes_there)
        return enough or not listening

    def restart(self, now: int, bytes_there: int) -> None:
        """Start the full time limit again; ``bytes_there`` of the packet have arrived."""
        self._began = now
        self._seen_bytes = bytes_there
        self.due = now + self._limit_s
