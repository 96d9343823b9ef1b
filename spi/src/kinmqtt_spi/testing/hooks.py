"""Calls a plugin's hooks as the broker does."""

from __future__ import annotations

from typing import Any

import pluggy

from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import PROJECT, HookTraits, traits_of


class Hooks:
    """The hooks of a plugin: an object or a module, whose functions take the arguments they need."""

    def __init__(self, plugin: Any) -> None:
        """Raises pluggy's ``PluginValidationError`` if an implementation does not match its hook."""
        manager = pluggy.PluginManager(PROJECT)
        for module in HOOKSPEC_MODULES:
            manager.add_hookspecs(module)
        manager.register(plugin, "plugin")
        manager.check_pending()
        self.implementations: dict[str, pluggy.HookImpl] = {}
        """By hook."""
        self._specs: dict[str, Any] = {}
        for caller in manager.get_hookcallers(plugin) or ():
            [self.implementations[caller.name]] = caller.get_hookimpls()
            assert caller.spec is not None
            self._specs[caller.name] = caller.spec.function

    def has(self, hook: str) -> bool:
        """Tell whether the plugin implements the hook."""
        return hook in self.implementations

    def traits(self, hook: str) -> HookTraits:
        """Return the traits of a hook that it implements."""
        return traits_of(self._specs[hook])

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call a hook and return the answer; ``arguments`` are all arguments of the hook."""
        assert hook in self.implementations, f"the plugin does not implement {hook}"
        implementation = self.implementations[hook]
        return implementation.function(*(arguments[name] for name in implementation.argnames))
