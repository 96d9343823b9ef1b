"""From settings to a service, without starting anything."""

from __future__ import annotations

import signal
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from attrs import evolve
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent

from kinmqtt.builtins import memory
from kinmqtt.cli import run as runner
from kinmqtt.config import Overrides, Settings, load
from kinmqtt.hooks.denial_log import DenialLogger
from kinmqtt.hooks.discovery import Candidate
from kinmqtt.hooks.selection import Selection
from kinmqtt_spi import ALLOW, SPI_VERSION, hookimpl
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.plugin import Requirements


class Guard:
    """An authenticator."""

    @hookimpl
    def authenticate(self) -> Any:
        return ALLOW


class NeedsAsyncio:
    """A plugin of asyncio's world."""

    @hookimpl
    def requirements(self) -> Requirements:
        return Requirements(SPI_VERSION, reactor="asyncio")


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The plugins that are installed, by name; none at first."""
    plugins: dict[str, Any] = {}
    monkeypatch.setattr(
        runner,
        "installed_candidates",
        lambda: [Candidate(name, "test", name, False, plugin) for name, plugin in plugins.items()],
    )
    return plugins


def settings(*listen: str, **overrides: Any) -> Settings:
    """Settings with these listeners."""
    return load(None, Overrides(listen, **{"data": "memory", **overrides}), {})


def test_nothing_is_opened_by_assembling() -> None:
    """An assembly has its listeners described, and opens none of them."""
    reactor = MemoryReactorClock()

    assembly, listeners = runner.build_assembly(settings("127.0.0.1:1883", "[::1]:1883"), reactor)

    assert [listener.plan.is_local for listener in listeners] == [True, True]
    assert assembly.providers["session"] == "memory"
    assert reactor.tcpServers == []


def test_bad_listeners_come_before_bad_plugins() -> None:
    """Listeners are judged before any plugin is imported."""
    with pytest.raises(AssemblyError, match="is not an endpoint"):
        runner.build_assembly(settings("tcp:x", disabled=("nobody",)), MemoryReactorClock())


def test_what_a_plugin_needs_of_the_reactor(installed: dict[str, Any]) -> None:
    """A plugin that needs asyncio is left out on another reactor; one that is named is refused, with a way out."""
    installed["fancy"] = NeedsAsyncio()
    named = evolve(settings(), selection=Selection(order=("fancy",)))

    assembly, _ = runner.build_assembly(settings(), MemoryReactorClock())
    assert "fancy" not in assembly.manager.active
    with pytest.raises(AssemblyError, match="plugin 'fancy' needs the asyncio reactor, but the broker runs on Mem"):
        runner.build_assembly(named, MemoryReactorClock())


def test_the_denial_logger_is_handed_on_to_the_assembly() -> None:
    """`kinmqtt run` passes its own one; without it, as under twistd, denials are not logged."""
    denials = DenialLogger(enabled=True)

    assert runner.build_assembly(settings(), MemoryReactorClock(), denials)[0].denials is denials
    assert not runner.build_assembly(settings(), MemoryReactorClock())[0].denials.enabled


def test_anybody_or_not_is_told(installed: dict[str, Any]) -> None:
    """The introduction says where the broker listens and whether anonymous clients are accepted."""
    reactor = MemoryReactorClock()

    def told() -> list[str]:
        return runner.introduction(*runner.build_assembly(settings("127.0.0.1:1"), reactor), reactor)

    assert told()[1].endswith("; anonymous clients are accepted")

    installed["guard"] = Guard()
    lines = told()
    assert len(lines) == 4
    assert runner.version() in lines[0] and "MemoryReactorClock reactor" in lines[0]
    assert lines[1].startswith("listening on tcp:1:interface=127.0.0.1")
    assert lines[1].endswith("; clients must authenticate")


class Elsewhere:
    """Keeps sessions and their queues somewhere else; here, in the built-in's memory."""

    @hookimpl
    def session_store(self) -> Any:
        return memory.session_store()

    @hookimpl
    def queue_store(self) -> Any:
        return memory.queue_store()


@pytest.mark.parametrize(
    ("data", "plugin", "expected"),
    [
        ("memory", None, "state is kept in memory and ends with this process"),
        ("/nowhere", None, "state is kept in /nowhere"),
        (
            "memory",
            Elsewhere(),
            "state is kept by far (queue, session), in memory and ends with this process (retain, event)",
        ),
        ("/nowhere", Elsewhere(), "state is kept by far (queue, session), in /nowhere (retain, event)"),
    ],
)
def test_where_state_is_kept_is_told(installed: dict[str, Any], data: str, plugin: Any, expected: str) -> None:
    """The introduction says who keeps what: an operator looks there for what must be backed up."""
    if plugin is not None:
        installed["far"] = plugin
    reactor = MemoryReactorClock()

    assembly = runner.build_assembly(settings("127.0.0.1:1", data=data), reactor)

    assert runner.introduction(*assembly, reactor)[-1] == expected


def test_an_unlisted_reactor_has_its_class_s_name() -> None:
    """A reactor is called by its class, but for asyncio's."""

    class AsyncioReactor:
        _asyncioEventloop = object()

    assert runner.reactor_kind(AsyncioReactor()) == "asyncio"
    assert runner.reactor_kind(MemoryReactorClock()) == "MemoryReactorClock"


def test_the_version_of_what_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """From a source tree that was never installed the version is unknown, and that is no mistake."""

    def missing(name: str) -> str:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(runner, "distribution_version", missing)

    assert runner.version() == "unknown"


def test_a_second_signal_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """While the broker stops, SIGTERM and SIGINT have a line in the log: the reactor is not stopped a second time."""
    handlers: dict[int, Any] = {}
    monkeypatch.setattr(signal, "signal", handlers.__setitem__)
    reactor: Any = MemoryReactorClock()
    triggers: list[Any] = []
    monkeypatch.setattr(reactor, "addSystemEventTrigger", lambda phase, event, call: triggers.append(call))
    reactor.callFromThread = lambda call, *arguments, **named: call(*arguments, **named)
    runner.bear_further_signals(reactor)

    assert handlers == {}
    for trigger in triggers:
        trigger()
    with capturedLogs() as events:
        for number in (signal.SIGTERM, signal.SIGINT):
            handlers[number](number, None)

    assert set(handlers) == {signal.SIGTERM, signal.SIGINT}
    assert [formatEvent(event).split(":")[0] for event in events] == ["SIGTERM", "SIGINT"]
    assert not reactor.hasStopped
