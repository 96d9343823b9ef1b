"""Who comes while there are too many connections waits a moment: places may be free, and nobody has noticed yet.

A close is noticed in the turn of the event loop in which it is read, or in one of the next; a new connection may be
accepted in the same turn before that. And a client that says DISCONNECT has its place until what it is owed has gone
out. So nothing is read of a connection for which there is no place, and it is refused when none has become free. How
long, and how many wait, is bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock, Timer

PATIENCE_S: Final = 0.2
"""How long a connection waits for a place."""

MAX_WAITING: Final = 1_000
"""Connections that wait for a place at one time; those above it are refused at once."""


class Comer(Protocol):
    """A connection for which there was no place when it came."""

    @property
    def has_place(self) -> bool:
        """Whether there is a place for it now."""

    def come_in(self) -> None:
        """Take the place, or be refused where there is none."""

    def abort(self) -> None:
        """End it now."""


class Admission:
    """The connections of all listeners that wait for a place, in the order in which they came."""

    def __init__(self, clock: Clock, most: int = MAX_WAITING) -> None:
        self._clock = clock
        self._most = most
        self._comers: dict[Comer, Timer] = {}
        self._looks = False

    def __len__(self) -> int:
        return len(self._comers)

    def wait(self, comer: Comer) -> bool:
        """Have a connection come in when there is a place, or when its patience is over; ``False`` for not at all."""
        if len(self._comers) >= self._most:
            return False
        self._comers[comer] = self._clock.later(PATIENCE_S, lambda: self._call_in(comer))
        return True

    def leave(self, comer: Comer) -> None:
        """A connection waits no longer."""
        timer = self._comers.pop(comer, None)
        if timer is not None:
            timer.cancel()

    def place_is_free(self) -> None:
        """A connection has given up its place: look for somebody who waits for it, in the next turn."""
        if self._comers and not self._looks:
            self._looks = True
            self._clock.later(0, self._look)

    def stop(self) -> None:
        """The listeners are closed: nobody comes in any more."""
        self._most = 0
        for comer in list(self._comers):
            self.leave(comer)
            comer.abort()

    def _look(self) -> None:
        self._looks = False
        for comer in list(self._comers):
            if comer.has_place:
                self._call_in(comer)

    def _call_in(self, comer: Comer) -> None:
        self.leave(comer)
        comer.come_in()
