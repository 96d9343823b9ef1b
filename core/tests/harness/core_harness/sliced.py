"""A broker whose slices are over as soon as somebody asks twice, one turn of the event loop at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from core_harness.house import House, Peer
from kinmqtt.broker.turn.slices import FIRST_SLICE_S
from kinmqtt_spi.memory.plugin import TurnableClock


class HurriedClock(TurnableClock):
    """Each look at it takes as long as a slice."""

    def __init__(self) -> None:
        super().__init__()
        self._looks = 0

    def monotonic(self) -> float:
        """Seconds since the clock was made, and a slice for each look at it."""
        self._looks += 1
        return super().monotonic() + self._looks * FIRST_SLICE_S


class SlicedHouse(House):
    """A broker in memory of which a test may run single turns of the event loop."""

    def __init__(self, **more: Any) -> None:
        super().__init__(clock=HurriedClock(), **more)

    def hand_over(self, peer: Peer, data: bytes) -> None:
        """What the event loop does with a read, and nothing else."""
        peer.connection.receive(data)

    def step(self) -> bool:
        """One call that the event loop was asked for; ``False`` where there is none."""
        if not self._soon:
            return False
        self._soon.popleft()()
        return True

    def steps_until(self, done: Callable[[], bool], most: int = 100_000) -> int:
        """Single calls until something is done; how many that took."""
        for steps in range(most):
            if done():
                return steps
            if not self.step():
                self.clock.advance(0)
        raise AssertionError(f"not done after {most} steps")


def answered(peer: Peer, answer: type[object]) -> bool:
    """Whether a client has such an answer."""
    peer.collect()
    return bool(peer.of(answer))
