"""The phases of a runner, and the state of a sink."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

from kinmqtt_spi.bridging.failures import text_of
from kinmqtt_spi.bridging.lanes import Lane
from kinmqtt_spi.errors import SinkRefused
from kinmqtt_spi.services.bridge import SinkState

StateHandler: TypeAlias = Callable[[SinkState, str], None]
"""Called once for each change of a sink's state, with the reason."""


class Phase(Enum):
    """What a runner does now."""

    STOPPED = "stopped"
    OPENING = "opening"
    """``Sink.open`` is under way."""
    RUNNING = "running"
    ENDING = "ending"
    """No batch begins; those under way end."""
    CLOSING = "closing"
    """``Sink.close`` is under way."""
    PAUSING = "pausing"
    """The sink is opened after a pause."""


def state_of(phase: Phase, lanes: Sequence[Lane], error: BaseException | None) -> tuple[SinkState, str]:
    """Return the state of a sink and the reason, which is empty if it is open.

    ``error`` is the last failure, ``None`` if something has succeeded since.
    """
    if phase is Phase.STOPPED:
        return SinkState.STOPPED, "the sink is stopped"
    for lane in lanes:
        if lane.halted:
            return SinkState.STOPPED, lane.why
    if error is not None:
        return SinkState.REFUSED if isinstance(error, SinkRefused) else SinkState.WAITING, text_of(error)
    for lane in lanes:
        if lane.is_failing():
            return SinkState.WAITING, lane.why
    return SinkState.OPEN, ""
