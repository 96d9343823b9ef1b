"""A typed interface to pluggy: the registered plugins, the provider of each service, and the hooks' implementations.

The rest of the core does not use ``pm.hook``. At assembly it gets the implementations from here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Final

import pluggy
from attrs import frozen
from twisted.logger import Logger

from kinmqtt.hooks.discovery import Candidate
from kinmqtt.hooks.hook_finder import HookFinder
from kinmqtt.hooks.selection import Choice, Selection
from kinmqtt_spi import SPI_VERSION
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.hookspecs import HOOKSPEC_MODULES
from kinmqtt_spi.markers import HookTraits, is_closed, topics_of, traits_of
from kinmqtt_spi.services.plugin import Requirements
from kinmqtt_spi.settings import did_you_mean

log = Logger("kinmqtt.plugins")

PROVIDERS: Final[dict[str, str]] = {
    "subscription": "subscription_index",
    "queue": "queue_store",
    "retain": "retain_store",
    "session": "session_store",
    "event": "event_log",
    "feed": "event_feed",
    "cluster": "cluster_backend",
    "arbiter": "cluster_arbiter",
}
"""Exclusive family to the hook that provides its service. All but ``arbiter`` have a built-in provider."""


@frozen(slots=True)
class Implementation:
    """One plugin's implementation of a hook; it can be called with all arguments of the hook."""

    plugin: str
    call: Callable[..., Any]
    topics: tuple[str, ...] | None = None
    asyncio: bool = False
    """Whether the plugin's coroutines are asyncio's (they await futures) rather than Twisted's."""
    closed: bool = False
    """Whether it is marked ``fails_closed``: its failures refuse the request where others would let it pass."""


HINTS: Final = {"embedded": '; for a broker without persistence set broker.data = "memory" (`--data memory`) instead'}
"""What to suggest to a user who disables a built-in provider."""


class PluginManager:
    """The active plugins and their hooks."""

    def __init__(self, choices: Sequence[Choice], selection: Selection, reactor: str) -> None:
        """Load and register the active choices, in their order; ``reactor`` is ``"asyncio"`` or another's name.

        Raises :class:`AssemblyError` for a plugin that can't be loaded or whose requirements do not hold.
        """
        self._pm = HookFinder()
        for module in HOOKSPEC_MODULES:
            self._pm.add_hookspecs(module)
        self.choices = list(choices)
        self.selection = selection
        self._rank: dict[str, int] = {}
        self._asyncio: set[str] = set()
        self._needed: dict[str, tuple[str, ...]] = {}
        self._left_out: set[tuple[str, str]] = set()
        for choice in self.choices:
            if choice.active:
                self._register(choice.candidate)
        for name in list(self._rank):
            self._check_requirements(name, reactor)
        self.check_needed_plugins()

    @property
    def active(self) -> tuple[str, ...]:
        """The names of the active plugins, in the order in which their hooks run."""
        return tuple(self._rank)

    def is_builtin(self, name: str) -> bool:
        """Tell whether a plugin is part of the core."""
        return any(c.candidate.builtin for c in self.choices if c.candidate.name == name)

    def uses_asyncio(self, name: str) -> bool:
        """Tell whether a plugin's coroutines are asyncio's."""
        return name in self._asyncio

    def implementations(self, hook: str) -> tuple[Implementation, ...]:
        """Return a hook's implementations, in the order in which they run."""
        caller = getattr(self._pm.hook, hook)
        found = sorted(caller.get_hookimpls(), key=lambda impl: self._rank[impl.plugin_name])
        spec = tuple(caller.spec.argnames)
        return tuple(
            Implementation(
                impl.plugin_name,
                _with_all_arguments(impl.function, tuple(impl.argnames), spec),
                topics_of(impl.function),
                impl.plugin_name in self._asyncio,
                is_closed(impl.function),
            )
            for impl in found
            if (impl.plugin_name, hook) not in self._left_out
        )

    def leave_out(self, name: str, hook: str) -> None:
        """Ignore one of a plugin's hooks from now on. Raises ``ValueError`` if the plugin does not implement it."""
        if hook not in self.hooks_of(name) and (name, hook) not in self._left_out:
            raise ValueError(f"it leaves out the hook {hook}, which it does not implement")
        self._left_out.add((name, hook))

    def hooks_of(self, name: str) -> tuple[str, ...]:
        """Return the names of the hooks that a plugin implements."""
        plugin = self._pm.get_plugin(name)
        callers = self._pm.get_hookcallers(plugin) or []
        return tuple(sorted(caller.name for caller in callers if (name, caller.name) not in self._left_out))

    def failing_openly(self, name: str) -> dict[str, bool]:
        """Return the plugin's hooks whose failures let requests pass by default, and whether this plugin's do."""
        return {
            hook: not any(each.closed for each in self.implementations(hook) if each.plugin == name)
            for hook in self.hooks_of(name)
            if self.traits(hook).fails_open
        }

    def traits(self, hook: str) -> HookTraits:
        """Return the traits with which a hook was declared."""
        return traits_of(getattr(self._pm.hook, hook).spec.function)

    def parameters(self, hook: str) -> tuple[str, ...]:
        """Return the names of a hook's parameters, in order."""
        return tuple(getattr(self._pm.hook, hook).spec.argnames)

    def deactivate(self, name: str, why: str) -> None:
        """Remove a plugin that turned out not to be configured."""
        self._pm.unregister(name=name)
        del self._rank[name]
        self.choices = [
            Choice(choice.candidate, False, why) if choice.candidate.name == name else choice
            for choice in self.choices
        ]

    def check_needed_plugins(self) -> None:
        """Raise :class:`AssemblyError` if a plugin needs another plugin that is inactive."""
        for name, others in self._needed.items():
            for other in others:
                if name in self._rank and other not in self._rank:
                    raise AssemblyError(f"plugin {name!r} needs plugin {other!r}, which is not active")

    def provider(self, family: str, default: str) -> Implementation:
        """Return the provider of an exclusive family: the named one, else the only installed one, else the built-in.

        Raises :class:`AssemblyError` as :meth:`optional_provider` does, or if the built-in is disabled.
        """
        built_in = next((each for each in self.implementations(PROVIDERS[family]) if each.plugin == default), None)
        chosen = self.optional_provider(family) or built_in
        if chosen is not None:
            return chosen
        raise AssemblyError(
            f"nothing provides the {family} service: the built-in {default!r} is disabled and no installed "
            f"plugin has a {PROVIDERS[family]} hook{HINTS.get(default, '')}"
        )

    def optional_provider(self, family: str) -> Implementation | None:
        """Return the named provider of an exclusive family, else the only installed one, else ``None``.

        Raises :class:`AssemblyError` if there are two candidates and none is named, or if the named one can't serve.
        """
        found = {impl.plugin: impl for impl in self.implementations(PROVIDERS[family])}
        wanted = self.selection.services.get(family)
        if wanted is not None:
            return self._named_provider(family, wanted, found)
        installed = [name for name in found if not self.is_builtin(name)]
        if len(installed) > 1:
            raise AssemblyError(
                f"plugins {' and '.join(map(repr, installed))} both provide the {family} service; "
                f"name one: services.{family} = {installed[0]!r}"
            )
        return found[installed[0]] if installed else None

    def _named_provider(self, family: str, wanted: str, found: dict[str, Implementation]) -> Implementation:
        if wanted in found:
            return found[wanted]
        able = ", ".join(map(repr, found)) or "none"
        raise AssemblyError(
            f"services.{family} names plugin {wanted!r}, which does not provide that service; those that do: {able}"
        )

    def _register(self, candidate: Candidate) -> None:
        plugin = candidate.load()
        try:
            self._pm.register(plugin, name=candidate.name)
            self._pm.check_pending()
        except (pluggy.PluginValidationError, ValueError) as error:
            # pluggy's message has several lines, but a log message should have one.
            text = self._misspelt(plugin) or " ".join(str(error).split())
            raise AssemblyError(f"plugin {candidate.name!r} ({candidate.source}): {text}") from error
        for caller in self._pm.get_hookcallers(plugin) or ():
            self._check_implementation(candidate.name, caller)
        self._rank[candidate.name] = len(self._rank)

    def _misspelt(self, plugin: object) -> str | None:
        """Describe a hook or a hook's argument that the plugin names and that does not exist."""
        there_are = {name: caller.spec for name, caller in vars(self._pm.hook).items() if caller.has_spec()}
        for name in dir(plugin):
            options = self._pm.parse_hookimpl_opts(plugin, name)
            if options is None:
                continue
            hook = options.get("specname") or name
            if hook not in there_are:
                return f"there is no hook {hook!r}{did_you_mean(hook, there_are) or '; see the list in docs/'}"
            known = there_are[hook].argnames
            for argument in pluggy.HookImpl(plugin, "", getattr(plugin, name), options).argnames:
                if argument not in known:
                    near = did_you_mean(argument, known) or f"; it has {', '.join(known) or 'none'}"
                    return f"the hook {hook} has no argument {argument!r}{near}"
        return None

    def _check_implementation(self, name: str, caller: Any) -> None:
        traits = traits_of(caller.spec.function)
        for impl in caller.get_hookimpls():
            if impl.plugin_name != name:
                continue
            if impl.hookwrapper or impl.wrapper:
                raise AssemblyError(
                    f"plugin {name!r} wraps the hook {caller.name}; hook wrappers are not supported, because the "
                    "broker combines answers by the kind of hook"
                )
            if impl.tryfirst or impl.trylast:
                raise AssemblyError(
                    f"plugin {name!r} marks its hook {caller.name} tryfirst or trylast; set the order of hooks with "
                    "the setting plugins.order instead"
                )
            if topics_of(impl.function) is not None and not traits.by_topic:
                raise AssemblyError(
                    f"plugin {name!r} limits the hook {caller.name} to topics, but that hook has no topic"
                )
            if is_closed(impl.function) and not traits.fails_open:
                raise AssemblyError(
                    f"plugin {name!r} marks its hook {caller.name} fails_closed, but failures of that hook are "
                    "always refused; remove the mark"
                )
            if traits.synchronous and inspect.iscoroutinefunction(impl.function):
                raise AssemblyError(
                    f"plugin {name!r} implements the hook {caller.name} as a coroutine; it must be synchronous"
                )

    def _check_requirements(self, name: str, reactor: str) -> None:
        for impl in self.implementations("requirements"):
            if impl.plugin != name:
                continue
            needs = _requirements(impl)
            if needs.spi_version != SPI_VERSION:
                raise AssemblyError(
                    f"plugin {name!r} was written for version {needs.spi_version} of the SPI; this broker has "
                    f"version {SPI_VERSION}"
                )
            if needs.reactor is not None and needs.reactor != reactor:
                if name not in self.selection.named:
                    # An installed plugin that is not named in the settings must not prevent the start.
                    why = f"needs the {needs.reactor} reactor, and the broker runs on {reactor}"
                    log.warn("plugin {name} is installed but not used: it {why}", name=name, why=why)
                    self.deactivate(name, why)
                    return
                raise AssemblyError(
                    f"plugin {name!r} needs the {needs.reactor} reactor, but the broker runs on {reactor}; "
                    f"start it with `twistd --reactor={needs.reactor} kinmqtt` or `kinmqtt run`"
                )
            self._needed[name] = needs.plugins
            if needs.reactor == "asyncio":
                self._asyncio.add(name)


def _requirements(implementation: Implementation) -> Requirements:
    try:
        needs = implementation.call()
    except Exception as error:
        raise AssemblyError(
            f"plugin {implementation.plugin!r} failed in requirements: {type(error).__name__}: {error}"
        ) from error
    if not isinstance(needs, Requirements):
        raise AssemblyError(
            f"plugin {implementation.plugin!r}: requirements returned a {type(needs).__name__}, not Requirements"
        )
    return needs


def _with_all_arguments(
    function: Callable[..., Any], accepted: tuple[str, ...], offered: tuple[str, ...]
) -> Callable[..., Any]:
    """Adapt an implementation that takes fewer arguments, so that it can be called with all of them, in order."""
    if accepted == offered:
        return function
    picks = tuple(offered.index(name) for name in accepted)
    if len(picks) == 1:
        only = picks[0]
        return lambda *arguments: function(arguments[only])
    return lambda *arguments: function(*[arguments[pick] for pick in picks])
