"""The health of sinks, and what is shown of them under ``$SYS``."""

from __future__ import annotations

from typing import Final

from attrs import define

from kinmqtt_spi.bridging.runner import SinkRunner
from kinmqtt_spi.services.bridge import SinkPlan, SinkState
from kinmqtt_spi.services.outbox import Outbox
from kinmqtt_spi.services.plugin import Health, HealthState

NEARLY_FULL: Final = 0.8
"""The share of an outbox's bounds above which its plugin is degraded."""

_RANK: Final = {HealthState.HEALTHY: 0, HealthState.DEGRADED: 1, HealthState.FAILED: 2}


@define(slots=True, eq=False)
class BridgedSink:
    """A sink with its outboxes."""

    runner: SinkRunner
    plan: SinkPlan
    parked: Outbox | None
    on_asyncio: bool
    """Whether the plugin's coroutines are asyncio's."""
    is_gone: bool = False
    """Whether the plugin no longer has it. Its outbox stays, and its runner is stopped."""


def health_of(sink: BridgedSink) -> Health:
    """Return the health of a sink and its outboxes."""
    runner = sink.runner
    fullness = runner.outbox.figures().fullness
    if runner.state in (SinkState.REFUSED, SinkState.STOPPED) and runner.why:
        return Health(HealthState.FAILED, f"{runner.state.value}: {runner.why}")
    if fullness >= 1:
        return Health(HealthState.FAILED, "its outbox is full")
    if runner.state is SinkState.WAITING:
        return Health(HealthState.DEGRADED, f"waiting: {runner.why}")
    if fullness > NEARLY_FULL:
        return Health(HealthState.DEGRADED, f"its outbox is {fullness:.0%} full")
    if runner.parking is not None and runner.parking.count():
        return Health(HealthState.DEGRADED, f"{runner.parking.count()} messages are parked")
    return Health(HealthState.HEALTHY)


def lower(found: dict[str, Health], plugin: str, what: str, health: Health) -> None:
    """Lower a plugin's health to that of one of its parts, and add the reason."""
    if health.state is HealthState.HEALTHY:
        return
    before = found.get(plugin, Health(HealthState.HEALTHY))
    state = max(before.state, health.state, key=lambda each: _RANK[each])
    text = f"{what}: {health.text}"
    found[plugin] = Health(state, f"{before.text}; {text}" if before.text else text)


def state_text(sink: BridgedSink) -> str:
    """Return a sink's state for ``$SYS``."""
    return sink.runner.state.value


def queued_text(sink: BridgedSink) -> str:
    """Return how many messages a sink has to send, for ``$SYS``."""
    figures = sink.runner.outbox.figures()
    return str(figures.queued + figures.inflight)
