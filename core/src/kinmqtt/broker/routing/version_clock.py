"""The versions of retained messages: a hybrid clock, whose versions rise whatever the wall clock does."""

from __future__ import annotations

from math import inf, nextafter

from kinmqtt_spi.services.retain import RetainVersion
from kinmqtt_spi.values import MessageId


class VersionClock:
    """Gives each write a later version than every version that was seen here.

    A version's time is the wall clock's, in seconds since the epoch. Where that is not after all versions seen
    before, it is the next number above them, some 240 ns more: the low bits count while the clock stands still.
    """

    __slots__ = ("_last", "_latest")

    def __init__(self) -> None:
        self._latest = 0.0
        self._last = (0.0, 0, 0)
        """The last version that was given."""

    def observe(self, received_at: float) -> None:
        """Note the time of a version that another process has given: the next one is later."""
        # Strictly: between equal times the node's uid would decide.
        self._latest = max(self._latest, nextafter(received_at, inf))

    def next(self, received_at: float, id: MessageId, newest: float = 0.0) -> RetainVersion:
        """Return the version of a message that was received at this time, in seconds since the epoch.

        ``newest`` is the time of the newest version that the store knows.
        """
        if newest > self._latest:
            # Written by another broker whose clock is ahead, or a deletion before a restart.
            self.observe(newest)
        self._latest = max(self._latest, received_at)
        if (self._latest, *id) <= self._last:
            # One that was kept has an earlier id: a will, or a delayed message.
            self._latest = nextafter(self._latest, inf)
        self._last = (self._latest, *id)
        return RetainVersion(*self._last)
