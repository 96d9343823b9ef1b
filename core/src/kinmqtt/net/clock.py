"""Implements the SPI's clock with the reactor and the system time."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import frozen
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@frozen(slots=True)
class ReactorTimer:
    """A delayed call that can be cancelled at any time, even after it was made."""

    call: IDelayedCall

    def cancel(self) -> None:
        """Cancel the call."""
        try:
            self.call.cancel()
        except (AlreadyCalled, AlreadyCancelled):
            pass


@frozen(slots=True)
class ReactorClock:
    """Implements :class:`kinmqtt_spi.services.plugin.Clock`."""

    reactor: IReactorTime

    def now(self) -> float:
        """Return seconds since the epoch, UTC."""
        return time.time()

    # The function itself, not a method that calls it: the message path uses it every few packets.
    monotonic = staticmethod(time.monotonic)
    """Return seconds since an arbitrary start."""

    def later(self, delay_s: float, call: Callable[[], object]) -> ReactorTimer:
        """Make a call on the reactor thread after ``delay_s`` seconds."""
        return ReactorTimer(self.reactor.callLater(delay_s, call))
