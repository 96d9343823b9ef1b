"""Hooks are found as pluggy finds them, in whatever way a plugin has them."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

import pluggy
import pytest

from kinmqtt.hooks.hook_finder import HookFinder
from kinmqtt_spi import hookimpl
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import PROJECT


@hookimpl
def stop() -> None:
    """A function that implements a hook."""


class Base:
    """Methods, marked and not marked."""

    @hookimpl
    def start(self, context: Any) -> None:
        """An implementation."""

    @hookimpl
    def health(self) -> None:
        """An implementation that a subclass overrides without a mark."""

    def ready(self) -> None:
        """Named like a hook, and not marked."""


class Sub(Base):
    """Everything that a class may have."""

    closes = hookimpl(specname="stop")(lambda self: None)

    def health(self) -> None:
        """Not marked here."""

    @hookimpl
    @staticmethod
    def drain(deadline_s: float) -> None:
        """A static method."""

    @classmethod
    @hookimpl
    def settings_class(cls) -> None:
        """A class method."""

    @property
    def sys_topics(self) -> None:
        """Nobody may ask for it."""
        raise AssertionError


class Slotted:
    """No ``__dict__``, and a hook in a slot."""

    __slots__ = ("stop",)

    def __init__(self) -> None:
        self.stop = stop

    @hookimpl
    def start(self, context: Any) -> None:
        """An implementation."""


def instance() -> object:
    """Returns a plugin with hooks of its own, one of which hides its class's."""
    made = Sub()
    vars(made).update(requirements=stop, start=lambda context: None)
    return made


def module() -> ModuleType:
    """Returns a plugin that is a module."""
    made = ModuleType("plugin")
    vars(made).update(stop=stop, ready=lambda: None, Base=Base)
    return made


def found(manager: pluggy.PluginManager, plugin: object) -> dict[str, Any]:
    """Returns what a manager finds, by name."""
    for each in HOOKSPEC_MODULES:
        manager.add_hookspecs(each)
    manager.register(plugin)
    callers = vars(manager.hook).items()
    return {
        name: (caller.spec.argnames, caller.spec.opts, [impl.function for impl in caller.get_hookimpls()])
        for name, caller in callers
    }


PLUGINS = [Sub(), instance(), Slotted(), Sub, module(), SimpleNamespace(stop=stop, x=1)]


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: type(plugin).__name__)
def test_what_a_plugin_has_is_found(plugin: object) -> None:
    """Methods of all kinds, inherited or its own; the rest is left alone."""
    hooks = found(HookFinder(), plugin)

    assert hooks == found(pluggy.PluginManager(PROJECT), plugin)
    assert hooks["stop"][2]
    assert not hooks["ready"][2]
