"""Connections that the broker has closed, and that are read from for a moment more, so that its last words are read.

A client that is still writing when its connection is closed gets a reset from its system, and with it loses what
it has not read yet: the DISCONNECT or CONNACK that says why. So the sending side is shut (TLS: with a close_notify),
what comes is read and forgotten, and the connection ends when the client closes, too. The broker itself has done with
it by then: nothing of it counts among its connections. How long, how much and how many are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock, Timer

LINGER_LIMIT_S: Final = 2.0
"""How long a client may take to read the last words and close."""

MAX_LINGERING: Final = 1_000
"""Connections that linger at one time; those above it are closed at once."""


class Leaver(Protocol):
    """A connection that is closed."""

    def abort(self) -> None:
        """End it now."""


class Lingering:
    """The connections of all listeners that linger."""

    def __init__(self, clock: Clock, most: int = MAX_LINGERING) -> None:
        self._clock = clock
        self._most = most
        self._leavers: dict[Leaver, Timer] = {}

    def __len__(self) -> int:
        return len(self._leavers)

    @property
    def has_capacity(self) -> bool:
        """Whether one more may linger."""
        return len(self._leavers) < self._most

    def begin(self, leaver: Leaver, limit_s: float) -> None:
        """Have a connection end after ``limit_s`` seconds, should it not :meth:`leave` before."""
        self._leavers[leaver] = self._clock.later(limit_s, leaver.abort)

    def leave(self, leaver: Leaver) -> None:
        """A connection is gone."""
        timer = self._leavers.pop(leaver, None)
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """The broker stops: nobody lingers any more."""
        self._most = 0
        for leaver in list(self._leavers):
            leaver.abort()
