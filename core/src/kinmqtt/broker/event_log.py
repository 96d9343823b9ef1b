"""Records client events, with the version that orders them."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from kinmqtt_spi.services.event import Event, EventKind, EventVersion

if TYPE_CHECKING:
    from kinmqtt.broker.runtime import Runtime

_counter: Final = count(1)


def record(runtime: Runtime, kind: EventKind, client_id: str, epoch: int, **data: object) -> None:
    """Record an event with this turn's writes. ``data`` has plain values; no payloads, no passwords."""
    record_data(runtime, kind, client_id, epoch, data)


def record_data(runtime: Runtime, kind: EventKind, client_id: str, epoch: int, data: dict[str, object]) -> None:
    """Record an event whose ``data`` may still be extended in this turn."""
    version = EventVersion(epoch, next(_counter))
    runtime.turn.batch.events.append(Event(kind, client_id, version, runtime.clock.now(), data))
    runtime.turn.touch()
