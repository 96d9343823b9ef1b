"""Pauses after a failure of Kafka, or of a handler of what comes from there."""

from __future__ import annotations

from random import Random
from typing import Final

from kinmqtt_spi.bridging.pauses import Pauses

FIRST_PAUSE_S: Final = 0.1
LONGEST_PAUSE_S: Final = 30.0


def pauses(random: Random | None = None) -> Pauses:
    """Return pauses that double from the first to the longest, less a random share; ``random`` may be seeded."""
    return Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, Random() if random is None else random)
