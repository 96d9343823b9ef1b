"""Limits how many connections a listener accepts a second; further ones wait in the operating system's queue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kinmqtt_spi.services.plugin import Clock, Timer


class AcceptRate:
    """Stops accepting while a token bucket of one second's worth is empty; costs nothing without a rate."""

    def __init__(self, rate_per_s: float | None, clock: Clock) -> None:
        self._rate_per_s = rate_per_s
        self._clock = clock
        self._tokens = max(1.0, rate_per_s or 1.0)
        self._at_s = clock.monotonic()
        self._timer: Timer | None = None
        self.port: Any = None
        """The listening port, while it is open."""

    def count(self) -> None:
        """Count an accepted connection, and stop accepting if the bucket is empty."""
        rate_per_s = self._rate_per_s
        if rate_per_s is None:
            return
        now = self._clock.monotonic()
        self._tokens = min(max(1.0, rate_per_s), self._tokens + (now - self._at_s) * rate_per_s) - 1
        self._at_s = now
        # A port may accept several before it pauses: the pause is longer in proportion.
        if self._tokens < 0 and self._timer is None and hasattr(self.port, "stopReading"):
            self.port.stopReading()
            self._timer = self._clock.later(-self._tokens / rate_per_s, self._accept_again)

    def stop(self) -> None:
        """Stop: the port is closed and must not be resumed."""
        self.port = None
        if self._timer is not None:
            self._timer.cancel()

    def _accept_again(self) -> None:
        self._timer = None
        if self.port is not None:
            self.port.startReading()
