"""Builds the service from the settings: shared by `kinmqtt run`, `kinmqtt check` and `twistd kinmqtt`."""

from __future__ import annotations

import platform
import secrets
import signal
import socket
import threading
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as distribution_version
from typing import Any, Final

from twisted.internet.threads import deferToThread
from twisted.logger import Logger

from kinmqtt.broker import allocator
from kinmqtt.broker.assembly import Assembly, Environment, assemble
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.user_rules import notes_on_users
from kinmqtt.builtins import PERSISTENT_DEFAULTS
from kinmqtt.config import Settings
from kinmqtt.hooks.denial_log import DenialLogger
from kinmqtt.hooks.discovery import builtin_candidates, installed_candidates
from kinmqtt.hooks.manager import PluginManager
from kinmqtt.hooks.selection import choose
from kinmqtt.net.clock import ReactorClock
from kinmqtt.net.listeners import ListenerPort, parse_listeners
from kinmqtt.net.owned import owning_loop
from kinmqtt.net.service import BrokerService, NewSettings
from kinmqtt.settings.defaults import size_in_words
from kinmqtt.settings.machine import raise_open_file_limit, this_machine
from kinmqtt_spi.values import NodeIdentity

log = Logger("kinmqtt")

SELECT: Final = "SelectReactor"
"""The reactor that does not support file descriptors above 1,024."""


def version() -> str:
    """Return the version of the installed core."""
    try:
        return distribution_version("kinmqtt-core")
    except PackageNotFoundError:
        return "unknown"


def reactor_kind(reactor: Any) -> str:
    """Return the name of a reactor's event loop: ``asyncio`` if plugins can use asyncio libraries."""
    return "asyncio" if hasattr(reactor, "_asyncioEventloop") else type(reactor).__name__


def build_manager(settings: Settings, reactor: Any) -> PluginManager:
    """Find and choose plugins. Raises :class:`~kinmqtt_spi.errors.AssemblyError`."""
    candidates = [*installed_candidates(), *builtin_candidates()]
    return PluginManager(choose(candidates, settings.selection), settings.selection, reactor_kind(reactor))


def build_assembly(
    settings: Settings, reactor: Any, denials: DenialLogger | None = None
) -> tuple[Assembly, list[ListenerPort]]:
    """Assemble the broker and its listeners without opening or starting anything.

    Without ``denials`` no denial of an authorizer is logged. Raises :class:`~kinmqtt_spi.errors.AssemblyError` or
    :class:`~kinmqtt_spi.errors.SettingsError`.
    """
    listeners = parse_listeners(reactor, settings.listeners)
    if reactor_kind(reactor) != SELECT:
        raise_open_file_limit()
    node = NodeIdentity(settings.broker.node_name or socket.gethostname(), secrets.randbits(64))
    environment = Environment(
        node,
        ReactorClock(reactor),
        lambda call: deferToThread(call),
        [listener.plan for listener in listeners],
        machine=this_machine,
        denials=denials or DenialLogger(),
    )
    manager = build_manager(settings, reactor)
    assembly = assemble(settings.broker, settings.limits, settings.for_plugin, manager, environment, settings.events)
    settings.check_plugin_variables()
    return assembly, listeners


def build_service(settings: Settings, reactor: Any, denials: DenialLogger | None = None) -> BrokerService:
    """Build the service that runs the broker; takes and raises what :func:`build_assembly` does."""
    allocator.tune()
    assembly, listeners = build_assembly(settings, reactor, denials)

    def introduce(broker: Broker) -> Sequence[str]:
        return introduction(assembly, listeners, reactor)

    def reread() -> NewSettings:
        new = settings.reread()
        return NewSettings(new.for_plugin, new.limits, settings.left_by(new, assembly.manager.active))

    return BrokerService(reactor, assembly, listeners, version(), introduce, reread)


def bear_further_signals(reactor: Any) -> None:
    """Have a SIGTERM or SIGINT that comes while the broker stops say so in the log, and change nothing.

    The reactor's own handlers would stop it a second time, which is an error.
    """

    def stops(number: int, frame: object) -> None:
        name = signal.Signals(number).name
        text = "{name}: the broker stops already, and takes leave of its clients; SIGKILL would end it at once"
        reactor.callFromThread(log.info, text, name=name)

    def begin() -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, stops)

    reactor.addSystemEventTrigger("before", "shutdown", begin)


def introduction(assembly: Assembly, listeners: Sequence[ListenerPort], reactor: Any) -> list[str]:
    """Return the log lines at the start: three on the broker, its listeners and its limits, and remarks."""
    where = ", ".join(listener.summary for listener in listeners)
    anonymous = "anonymous" in assembly.manager.active
    who = "anonymous clients are accepted" if anonymous else "clients must authenticate"
    return [
        f"kinmqtt {version()} on {platform.python_implementation()} {platform.python_version()}, "
        f"{reactor_kind(reactor)} reactor{' on uvloop' if owning_loop(reactor) else ''}",
        f"listening on {where}; {who}",
        limits_in_words(assembly),
        _kept(assembly),
        *notes_on_users(assembly),
    ]


def limits_in_words(assembly: Assembly) -> str:
    """Describe the limits that depend on the machine, and the machine's memory and open files."""
    machine = assembly.machine()
    memory = "unknown memory" if machine.memory_bytes is None else f"{size_in_words(machine.memory_bytes)} of memory"
    files = "any number of" if machine.open_files is None else machine.open_files
    limits = ", ".join(
        f"{name} {size_in_words(value) if name.endswith('_bytes') and value else value}"
        for name, value in assembly.limits.of_machine.items()
    )
    return f"limits with {memory} and {files} open files: {limits}"


def _kept(assembly: Assembly) -> str:
    """Describe where state is stored: in a directory, by other plugins, or in memory."""
    families: dict[str, list[str]] = {}
    for family, plugin in assembly.providers.items():
        if family in PERSISTENT_DEFAULTS:
            families.setdefault(plugin, []).append(family)
    places = {
        "embedded": f"in {assembly.settings.data_directory}",
        "memory": "in memory and ends with this process",
    }
    if len(families) == 1:
        plugin = next(iter(families))
        return f"state is kept {places.get(plugin, f'by {plugin}')}"
    # Families of installed plugins come first.
    told = sorted(families, key=lambda plugin: plugin in places)
    return "state is kept " + ", ".join(
        f"{places.get(plugin, f'by {plugin}')} ({', '.join(families[plugin])})" for plugin in told
    )
