"""The reactor's clock."""

from __future__ import annotations

import time

from twisted.internet.task import Clock as TwistedClock

from kinmqtt.net.clock import ReactorClock
from kinmqtt_spi.services.plugin import Clock


def test_a_call_is_made_when_its_time_has_come() -> None:
    """A call asked for in two seconds is made after two seconds and not before."""
    reactor = TwistedClock()
    calls: list[str] = []
    ReactorClock(reactor).later(2, lambda: calls.append("made"))

    reactor.advance(1.9)
    assert calls == []

    reactor.advance(0.1)
    assert calls == ["made"]


def test_a_cancelled_call_is_not_made() -> None:
    """A call that was cancelled in time is forgotten."""
    reactor = TwistedClock()
    calls: list[str] = []
    timer = ReactorClock(reactor).later(2, lambda: calls.append("made"))

    timer.cancel()
    reactor.advance(3)

    assert calls == []
    assert reactor.getDelayedCalls() == []


def test_cancelling_too_late_or_twice_is_harmless() -> None:
    """A timer may be cancelled after its call was made, and any number of times."""
    reactor = TwistedClock()
    calls: list[str] = []
    made = ReactorClock(reactor).later(1, lambda: calls.append("made"))
    cancelled = ReactorClock(reactor).later(5, lambda: calls.append("never"))
    reactor.advance(1)

    made.cancel()
    cancelled.cancel()
    cancelled.cancel()

    reactor.advance(10)
    assert calls == ["made"]


def test_times_are_real() -> None:
    """The clock tells the time of day, and a time that never goes back."""
    clock: Clock = ReactorClock(TwistedClock())

    assert abs(clock.now() - time.time()) < 60
    assert abs(clock.monotonic() - time.monotonic()) < 60
