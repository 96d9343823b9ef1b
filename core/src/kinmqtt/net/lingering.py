"""Reads on from connections that the broker has closed, so that the client can read the last packet.

If a client is still writing when its connection is closed, its system gets a reset and drops unread data: the
DISCONNECT or CONNACK with the reason. So the sending side is shut (TLS: with a close_notify), input is read and
dropped, and the connection ends when the client closes it, too. The broker no longer counts it among its connections.
Time, amount and number are bounded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock, Timer

LINGER_LIMIT_S: Final = 2.0
"""How long a client may take to read the last packet and close."""

MAX_LINGERING: Final = 1_000
"""Maximum number of lingering connections; further ones are closed immediately."""


class Closed(Protocol):
    """A connection that the broker has closed."""

    def abort(self) -> None:
        """End it immediately."""


class Lingering:
    """The lingering connections of all listeners."""

    def __init__(self, clock: Clock, most: int = MAX_LINGERING) -> None:
        self._clock = clock
        self._most = most
        self._connections: dict[Closed, Timer] = {}

    def __len__(self) -> int:
        return len(self._connections)

    @property
    def has_capacity(self) -> bool:
        """Tell whether one more connection may linger."""
        return len(self._connections) < self._most

    def begin(self, connection: Closed, limit_s: float) -> None:
        """End a connection after ``limit_s`` seconds, unless it calls :meth:`leave` before."""
        self._connections[connection] = self._clock.later(limit_s, connection.abort)

    def leave(self, connection: Closed) -> None:
        """Forget a connection that has ended."""
        timer = self._connections.pop(connection, None)
        if timer is not None:
            timer.cancel()

    def stop(self) -> None:
        """End all lingering connections, because the broker stops."""
        self._most = 0
        for connection in list(self._connections):
            connection.abort()
