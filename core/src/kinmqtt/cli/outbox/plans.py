"""The sinks of the settings: the bounds of their outboxes, and whether an outbox has anybody to wait for."""

from __future__ import annotations

from collections.abc import Mapping

from kinmqtt.broker.assembly import Assembly
from kinmqtt.cli.outbox.boxes import OutboxCommandError, StoredOutbox
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.bridge import SinkPlan
from kinmqtt_spi.services.outbox import OutboxSettings


def bounds_of(assembly: Assembly, outbox: StoredOutbox) -> OutboxSettings:
    """Return the bounds of a sink's outbox. Raises :class:`~kinmqtt_spi.errors.SpiError` if it is no sink's here."""
    plans = _plans_of(assembly, outbox.plugin)
    if plans is None or outbox.name not in plans:
        raise OutboxCommandError(
            f"{outbox.shown} is no sink of these settings, so nobody would take its messages, and the bounds of its "
            "outbox are unknown: name the broker's settings (-c FILE)"
        )
    return plans[outbox.name].outbox


def waits_for(assembly: Assembly, outbox: StoredOutbox) -> str:
    """Return what must happen before the messages of an outbox leave it."""
    if outbox.in_use:
        return "its sink: a broker that runs has it"
    if outbox.plugin not in assembly.manager.active:
        return f"the plugin {outbox.plugin}, which is not active in these settings"
    try:
        plans = _plans_of(assembly, outbox.plugin)
    except AssemblyError as error:
        return str(error)
    if not plans:
        return f"the plugin {outbox.plugin}, which opens it itself"
    if outbox.name not in plans:
        return f"the plugin {outbox.plugin} itself, or a sink {outbox.name}, which is not in these settings"
    return "the start of a broker"


def _plans_of(assembly: Assembly, plugin: str) -> Mapping[str, SinkPlan] | None:
    """Return a plugin's sinks; ``None`` if it is none that has sinks."""
    for call in assembly.hooks.sinks.each():
        if call.plugin == plugin:
            try:
                plans: Mapping[str, SinkPlan] = call(assembly.contexts[plugin]) or {}
            except Exception as error:
                raise AssemblyError(f"plugin {plugin!r} has no sinks: {error}") from error
            return plans
    return None
