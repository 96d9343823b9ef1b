"""The plugin manager: what it registers and refuses, in which order hooks run, and who serves a family."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kinmqtt.hooks.discovery import Candidate
from kinmqtt.hooks.manager import PluginManager
from kinmqtt.hooks.selection import Selection, choose
from kinmqtt_spi import SPI_VERSION, hookimpl, on_topics
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.markers import Kind
from kinmqtt_spi.services.plugin import Requirements


def manager(
    plugins: dict[str, Any],
    selection: Selection | None = None,
    *,
    built_in: dict[str, Any] | None = None,
    reactor: str = "asyncio",
) -> PluginManager:
    """A manager of plugin objects that are handed in, and of built-ins that are too."""
    chosen = selection or Selection()
    candidates = [Candidate(name, f"kinmqtt-{name} 1.0", name, False, plugin) for name, plugin in plugins.items()]
    candidates += [Candidate(name, "built-in", name, True, plugin) for name, plugin in (built_in or {}).items()]
    return PluginManager(choose(candidates, chosen), chosen, reactor)


class Silent:
    """Implements nothing."""


class Teller:
    """Answers a hook with its name."""

    def __init__(self, name: str = "") -> None:
        self.name = name

    @hookimpl
    def sys_topics(self) -> str:
        return self.name


class Store:
    """Offers to be the queue store."""

    @hookimpl
    def queue_store(self) -> None:
        """Nobody asks here what it provides."""


class Needy:
    """Has requirements."""

    def __init__(self, **needs: Any) -> None:
        self.needs = {"spi_version": SPI_VERSION, **needs}

    @hookimpl
    def requirements(self) -> Requirements:
        return Requirements(**self.needs)


# Order


def test_hooks_run_in_the_order_of_the_choices() -> None:
    """Not in that of registration backwards, as pluggy has it."""
    plugins = {name: Teller(name) for name in ("a", "b", "c")}

    found = manager(plugins, Selection(order=("b",))).implementations("sys_topics")

    assert [(one.plugin, one.call()) for one in found] == [("b", "b"), ("a", "a"), ("c", "c")]


def test_inactive_plugins_are_not_registered() -> None:
    """What the settings switch off is not even loaded."""
    candidate = Candidate("gone", "kinmqtt-gone 1.0", "no_such_module_anywhere", False)
    selection = Selection(disabled=frozenset({"gone"}))

    made = PluginManager(choose([candidate], selection), selection, "asyncio")

    assert made.active == ()
    assert [choice.why for choice in made.choices] == ["disabled by the settings"]


def test_a_deactivated_plugin_is_out() -> None:
    """It loses its hooks and its place, and its choice says why."""
    made = manager({"a": Teller("a"), "b": Teller("b")})

    made.deactivate("a", "not configured")

    assert made.active == ("b",)
    assert [one.plugin for one in made.implementations("sys_topics")] == ["b"]
    assert [(c.candidate.name, c.active, c.why) for c in made.choices] == [
        ("a", False, "not configured"),
        ("b", True, "installed"),
    ]


def test_what_a_plugin_implements_is_known() -> None:
    """Its hooks are told by name, in order."""

    class Both:
        @hookimpl
        def stop(self) -> None:
            """Nothing to stop."""

        @hookimpl
        def start(self) -> None:
            """Nothing to start."""

    made = manager({"both": Both(), "silent": Silent()}, built_in={"own": Silent()})

    assert made.hooks_of("both") == ("start", "stop")
    assert made.hooks_of("silent") == ()
    assert (made.is_builtin("own"), made.is_builtin("both")) == (True, False)


def test_a_hooks_declaration_is_known() -> None:
    """The kind and the parameters come from the SPI."""
    made = manager({})

    assert made.traits("delivering").kind is Kind.INTERCEPT
    assert made.parameters("delivering") == ("client", "message", "subscription")


# Arguments


def test_implementations_take_the_arguments_they_want() -> None:
    """Fewer arguments, in any order, are picked from all of the hook's by name."""

    class Picky:
        @hookimpl
        def delivering(self, subscription: Any, client: Any) -> Any:
            return (subscription, client)

    class Modest:
        @hookimpl
        def delivering(self, message: Any) -> Any:
            return message

    class Carefree:
        @hookimpl
        def delivering(self) -> Any:
            return "nothing"

    class Thorough:
        @hookimpl
        def delivering(self, client: Any, message: Any, subscription: Any) -> Any:
            return (client, message, subscription)

    plugins = {"a": Picky(), "b": Modest(), "c": Carefree(), "d": Thorough()}

    found = manager(plugins).implementations("delivering")

    assert [one.call("c", "m", "s") for one in found] == [("s", "c"), "m", "nothing", ("c", "m", "s")]


def test_an_unknown_argument_is_refused_in_one_line() -> None:
    """A misspelt parameter is found before anything starts."""

    class Misspelt:
        @hookimpl
        def delivering(self, cleint: Any) -> None:
            """Never called."""

    with pytest.raises(AssemblyError, match=r"^plugin 'a' \(kinmqtt-a 1\.0\): [^\n]*cleint") as caught:
        manager({"a": Misspelt()})
    assert "\n" not in str(caught.value)


def test_an_unknown_hook_is_refused() -> None:
    """A misspelt hook would never be called, so its plugin is not taken."""

    class Misspelt:
        @hookimpl
        def authentikate(self) -> None:
            """Never called."""

    with pytest.raises(AssemblyError, match=r"^plugin 'a' \(kinmqtt-a 1\.0\): .*authentikate"):
        manager({"a": Misspelt()})


def test_one_object_under_two_names_is_refused() -> None:
    """Two names for one plugin object would share its state."""
    plugin = Teller()

    with pytest.raises(AssemblyError, match=r"^plugin 'b' \(kinmqtt-b 1\.0\): "):
        manager({"a": plugin, "b": plugin})


# What hooks allow


class OldWrapper:
    """Wraps a hook the old way."""

    @hookimpl(hookwrapper=True)
    def authenticate(self) -> Any:
        yield


class NewWrapper:
    """Wraps a hook the new way."""

    @hookimpl(wrapper=True)
    def authenticate(self) -> Any:
        return (yield)


@pytest.mark.parametrize("plugin", [OldWrapper(), NewWrapper()])
def test_wrappers_are_refused(plugin: Any) -> None:
    """The broker combines answers itself, and a wrapper would be called by nobody."""
    with pytest.raises(
        AssemblyError, match="plugin 'a' wraps the hook authenticate; hook wrappers are not supported"
    ):
        manager({"a": plugin})


class MisspeltHook:
    """A hook that is none."""

    @hookimpl
    def authentcate(self, request: Any) -> Any:
        """Never called."""


class MisspeltArgument:
    """An argument that the hook does not have."""

    @hookimpl
    def authenticate(self, reqest: Any) -> Any:
        """Never called."""


class ForeignArgument:
    """An argument that is like none of the hook's."""

    @hookimpl
    def authenticate(self, xyz: Any) -> Any:
        """Never called."""


class ForeignHook:
    """A hook that is like none."""

    @hookimpl
    def xyz(self) -> Any:
        """Never called."""


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (MisspeltHook(), "there is no hook 'authentcate'; did you mean 'authenticate'?"),
        (MisspeltArgument(), "the hook authenticate has no argument 'reqest'; did you mean 'request'?"),
        (ForeignArgument(), "the hook authenticate has no argument 'xyz'; it has request"),
        (ForeignHook(), "there is no hook 'xyz'; see the list in docs/"),
    ],
)
def test_a_misspelt_hook_or_argument_is_told_with_what_is_near(plugin: Any, message: str) -> None:
    """One that is never called would be found by nobody."""
    with pytest.raises(AssemblyError) as failure:
        manager({"a": plugin})

    assert str(failure.value).startswith("plugin 'a' (")
    assert str(failure.value).endswith(message)


def test_topics_are_for_hooks_that_know_them() -> None:
    """on_topics is refused where no message with a topic goes by, and known where one does."""

    class Wrong:
        @hookimpl
        @on_topics("a/#")
        def connected(self) -> None:
            """Never called."""

    class Right:
        @hookimpl
        @on_topics("a/#", "b")
        def published(self) -> None:
            """Called for two filters."""

    with pytest.raises(AssemblyError, match="plugin 'a' limits the hook connected to topics"):
        manager({"a": Wrong()})
    assert manager({"a": Right()}).implementations("published")[0].topics == ("a/#", "b")


def test_a_coroutine_cannot_answer_at_once() -> None:
    """A synchronous hook that is written as a coroutine is found before the first message."""

    class Slow:
        @hookimpl
        async def authorize_receive(self) -> None:
            """Never called."""

    with pytest.raises(AssemblyError, match="plugin 'a' implements the hook authorize_receive as a coroutine"):
        manager({"a": Slow()})


# Requirements


@pytest.mark.parametrize("version", [SPI_VERSION - 1, SPI_VERSION + 1])
def test_another_version_of_the_spi_is_refused(version: int) -> None:
    """Both versions are told."""
    text = f"plugin 'a' was written for version {version} of the SPI; this broker has version {SPI_VERSION}"

    with pytest.raises(AssemblyError, match=re.escape(text)):
        manager({"a": Needy(spi_version=version)})


def test_another_reactor_is_refused() -> None:
    """How to start the broker on the reactor that is needed is told."""
    with pytest.raises(AssemblyError, match="plugin 'a' needs the asyncio reactor, but the broker runs on epoll"):
        manager({"a": Needy(reactor="asyncio")}, Selection(order=("a",)), reactor="epoll")


def test_another_reactor_leaves_out_what_nobody_asked_for() -> None:
    """A plugin that is merely installed does not stop a broker on another reactor; it is said why it is out."""
    plugins = manager({"a": Needy(reactor="asyncio"), "b": Needy()}, reactor="epoll")

    assert plugins.active == ("b",)
    [choice] = [choice for choice in plugins.choices if choice.candidate.name == "a"]
    assert (choice.active, choice.why) == (False, "needs the asyncio reactor, and the broker runs on epoll")


def test_coroutines_of_a_plugin_that_needs_asyncio_are_asyncios() -> None:
    """Only where a plugin asks for the asyncio reactor its coroutines are run by asyncio."""

    class Asyncio(Needy, Teller):
        def __init__(self) -> None:
            Needy.__init__(self, reactor="asyncio")
            self.name = "asyncio"

    made = manager({"a": Asyncio(), "b": Teller("b")})

    assert [one.asyncio for one in made.implementations("sys_topics")] == [True, False]


def test_a_needed_plugin_must_be_active() -> None:
    """One that is switched off is as good as missing; one that stands further back will do."""
    needy = Needy(plugins=("b",))

    assert manager({"a": needy, "b": Silent()}).active == ("a", "b")
    with pytest.raises(AssemblyError, match="plugin 'a' needs plugin 'b', which is not active"):
        manager({"a": needy, "b": Silent()}, Selection(disabled=frozenset({"b"})))


def test_requirements_that_raise_name_the_plugin() -> None:
    """A plugin that can't even say what it needs stops the assembly, in one sentence."""

    class Broken:
        @hookimpl
        def requirements(self) -> None:
            raise ValueError("broken")

    with pytest.raises(AssemblyError, match=r"plugin 'a' .*ValueError: broken"):
        manager({"a": Broken()})


def test_requirements_of_another_sort_name_the_plugin() -> None:
    """What is no Requirements says nothing that could be checked."""

    class Broken:
        @hookimpl
        def requirements(self) -> int:
            return SPI_VERSION

    with pytest.raises(AssemblyError, match="plugin 'a'"):
        manager({"a": Broken()})


# Providers


def test_the_built_in_serves_where_nobody_else_does() -> None:
    """Without an installed provider the default has the family."""
    made = manager({"a": Silent()}, built_in={"memory": Store()})

    assert made.provider("queue", "memory").plugin == "memory"


def test_the_only_installed_provider_serves() -> None:
    """One that is installed goes before the built-in without being named."""
    made = manager({"a": Store()}, built_in={"memory": Store()})

    assert made.provider("queue", "memory").plugin == "a"


def test_two_installed_providers_are_refused() -> None:
    """Where two could serve the settings must say which, and the message says how."""
    made = manager({"a": Store(), "b": Store()}, built_in={"memory": Store()})
    text = "plugins 'a' and 'b' both provide the queue service; name one: services.queue = 'a'"

    with pytest.raises(AssemblyError, match=re.escape(text)):
        made.provider("queue", "memory")


@pytest.mark.parametrize("name", ["a", "b", "memory"])
def test_the_named_provider_serves(name: str) -> None:
    """A named plugin serves, be it one of two or the built-in."""
    plugins = {"a": Store(), "b": Store()}

    made = manager(plugins, Selection(services={"queue": name}), built_in={"memory": Store()})

    assert made.provider("queue", "memory").plugin == name


def test_a_named_plugin_that_cannot_serve_is_refused() -> None:
    """Those that could are told."""
    plugins = {"a": Store(), "b": Silent()}
    made = manager(plugins, Selection(services={"queue": "b"}), built_in={"memory": Store()})
    text = "services.queue names plugin 'b', which does not provide that service; those that do: 'a', 'memory'"

    with pytest.raises(AssemblyError, match=re.escape(text)):
        made.provider("queue", "memory")


def test_a_family_that_nobody_serves_is_refused() -> None:
    """With the built-in disabled and nothing installed there is no such service."""
    made = manager({"a": Silent()}, Selection(disabled=frozenset({"memory"})), built_in={"memory": Store()})

    with pytest.raises(AssemblyError, match="nothing provides the queue service: the built-in 'memory' is disabled"):
        made.provider("queue", "memory")
