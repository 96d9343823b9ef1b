"""The reactor's clock, and the real time, as the SPI's clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from attrs import frozen
from twisted.internet.error import AlreadyCalled, AlreadyCancelled
from twisted.internet.interfaces import IDelayedCall, IReactorTime


@frozen(slots=True)
class ReactorTimer:
    """A delayed call that may be cancelled at any time, also too late."""

    call: IDelayedCall

    def cancel(self) -> None:
        """Forget the call."""
        try:
            self.call.cancel()
        except (AlreadyCalled, AlreadyCancelled):
            pass


@frozen(slots=True)
class ReactorClock:
    """Implements :class:`kinmqtt_spi.services.plugin.Clock`."""

    reactor: IReactorTime

    def now(self) -> float:
        """Seconds since the epoch, UTC."""
        return time.time()

    # Not a method that calls it: the message path asks every few packets.
    monotonic = staticmethod(time.monotonic)
    """Seconds since an arbitrary start."""

    def later(self, delay_s: float, call: Callable[[], object]) -> ReactorTimer:
        """Make a call on the reactor thread."""
        return ReactorTimer(self.reactor.callLater(delay_s, call))
