"""How many connections a listener accepts a second."""

from __future__ import annotations

from typing import Any

from kinmqtt.net.rate import AcceptRate
from kinmqtt_spi.memory.plugin import TurnableClock


class Port:
    """A listening port that notes whether it accepts."""

    def __init__(self) -> None:
        self.accepts = True

    def stopReading(self) -> None:
        self.accepts = False

    def startReading(self) -> None:
        self.accepts = True


def _rate(per_s: float | None) -> tuple[AcceptRate, Any, TurnableClock]:
    clock = TurnableClock()
    rate = AcceptRate(per_s, clock)
    rate.port = Port()
    return rate, rate.port, clock


def test_without_a_rate_everybody_is_accepted() -> None:
    """However many."""
    rate, port, _ = _rate(None)

    for _ in range(10_000):
        rate.count()

    assert port.accepts


def test_the_excess_waits() -> None:
    """A second's worth at once; then nobody, until there is room for another."""
    rate, port, clock = _rate(10)
    for _ in range(10):
        rate.count()
    assert port.accepts

    rate.count()
    assert not port.accepts
    clock.advance(0.09)
    assert not port.accepts
    clock.advance(0.02)
    assert port.accepts


def test_the_rate_holds_over_time() -> None:
    """Whatever a port accepts at one time: on average it is the rate."""
    rate, port, clock = _rate(50)
    accepted = 0
    for _ in range(1000):
        if port.accepts:
            for _ in range(20):
                rate.count()
                accepted += 1
        clock.advance(0.01)

    # A second's worth at once, one piece too much before the port stops, and one that ends the time.
    assert 500 <= accepted <= 500 + 50 + 20 + 20


def test_a_closed_port_is_left_alone() -> None:
    """Nothing is read from it again."""
    rate, port, clock = _rate(1)
    rate.count()
    rate.count()

    rate.stop()
    clock.advance(10)

    assert not port.accepts
    assert clock.pending() == 0
