"""Delays new connections above the limit for a moment, because a place may be about to become free.

A close is noticed in the turn of the event loop in which it is read, or in a later one; a new connection may be
accepted in the same turn before that. And a client that sends DISCONNECT holds its place until its output is sent. So
a connection above the limit is not read from, and is refused if no place becomes free. The delay and the number of
waiting connections are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock, Timer

PATIENCE_S: Final = 0.2
"""How long a connection waits for a place."""

MAX_WAITING: Final = 1_000
"""Maximum number of waiting connections; further ones are refused immediately."""


class UnplacedConnection(Protocol):
    """A connection for which there was no place when it was accepted."""

    @property
    def has_place(self) -> bool:
        """Tell whether there is a place for it now."""

    def come_in(self) -> None:
        """Take a place, or be refused if there is none."""

    def abort(self) -> None:
        """Close it immediately."""


class Admission:
    """The waiting connections of all listeners, in the order of their arrival."""

    def __init__(self, clock: Clock, most: int = MAX_WAITING) -> None:
        self._clock = clock
        self._most = most
        self._waiting: dict[UnplacedConnection, Timer] = {}
        self._looks = False

    def __len__(self) -> int:
        return len(self._waiting)

    def wait(self, candidate: UnplacedConnection) -> bool:
        """Admit a connection when a place is free or its wait is over; return ``False`` if too many wait."""
        if len(self._waiting) >= self._most:
            return False
        self._waiting[candidate] = self._clock.later(PATIENCE_S, lambda: self._call_in(candidate))
        return True

    def leave(self, candidate: UnplacedConnection) -> None:
        """Stop waiting: the connection is gone."""
        timer = self._waiting.pop(candidate, None)
        if timer is not None:
            timer.cancel()

    def place_is_free(self) -> None:
        """Admit a waiting connection in the next turn, because a place has become free."""
        if self._waiting and not self._looks:
            self._looks = True
            self._clock.later(0, self._look)

    def stop(self) -> None:
        """Close all waiting connections, because the listeners are closed."""
        self._most = 0
        for candidate in list(self._waiting):
            self.leave(candidate)
            candidate.abort()

    def _look(self) -> None:
        self._looks = False
        for candidate in list(self._waiting):
            if candidate.has_place:
                self._call_in(candidate)

    def _call_in(self, candidate: UnplacedConnection) -> None:
        self.leave(candidate)
        candidate.come_in()
