"""Putting a broker together: who is configured, who guards the door, what provides, and what is refused early."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import frozen
from twisted.internet.defer import Deferred, succeed

from kinmqtt.broker.assembly import Assembly, Environment, assemble
from kinmqtt.broker.broker import Broker
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.builtins import DEFAULTS
from kinmqtt.hooks.discovery import Candidate, builtin_candidates
from kinmqtt.hooks.manager import PROVIDERS, PluginManager
from kinmqtt.hooks.selection import Selection, choose
from kinmqtt.settings import BrokerSettings, LimitSettings, ListenerSettings
from kinmqtt_spi import SPI_VERSION, Message, hookimpl
from kinmqtt_spi.errors import AssemblyError, NotConfigured, SettingsError
from kinmqtt_spi.memory.plugin import TurnableClock
from kinmqtt_spi.memory.queue import MemoryQueueStore
from kinmqtt_spi.services.limiter import LimiterNeeds, ResourceKind
from kinmqtt_spi.services.plugin import Context, Requirements
from kinmqtt_spi.values import NodeIdentity

NODE = NodeIdentity("test", 7)


def put_together(
    plugins: dict[str, Any] | None = None,
    *,
    selection: Selection | None = None,
    allow_anonymous: bool | None = None,
    only_loopback: bool = True,
    listeners: dict[str, ListenerSettings] | None = None,
    settings_of: Callable[[str, Any], Any] = lambda name, settings_class: settings_class and settings_class(),
) -> Assembly:
    """An assembly of plugin objects and the built-ins."""
    chosen = selection or Selection()
    candidates = [Candidate(name, "test", name, False, plugin) for name, plugin in (plugins or {}).items()]
    choices = choose([*candidates, *builtin_candidates()], chosen)
    manager = PluginManager(choices, chosen, "asyncio")
    plans = [
        ListenerPlan(name, only_loopback, plan, f"k.toml:1: listeners.{name}")
        for name, plan in (listeners or {"tcp": ListenerSettings(endpoint="1883")}).items()
    ]
    environment = Environment(NODE, TurnableClock(), lambda call: succeed(call()), plans)

    def all_settings_of(name: str, settings_class: Any) -> Any:
        # The built-in limiter wants its own settings; everybody else gets what the test says.
        return settings_class() if name == "rate_limits" else settings_of(name, settings_class)

    return assemble(
        BrokerSettings(allow_anonymous=allow_anonymous),
        LimitSettings(),
        all_settings_of,
        manager,
        environment,
    )


def why(assembly: Assembly, name: str) -> str | None:
    """Why a plugin is not used; ``None`` where it is."""
    [choice] = [choice for choice in assembly.manager.choices if choice.candidate.name == name]
    return None if choice.active else choice.why


def broken(*_: Any) -> Any:
    """What a broken plugin does."""
    raise ValueError("broken")


# Anonymous clients


class Password:
    """Authenticates with passwords."""

    @hookimpl
    def authenticate(self) -> None:
        """Nobody asks here."""


class Tickets:
    """Authenticates in several steps."""

    @hookimpl
    def exchange(self) -> None:
        """Nobody asks here."""


class Absent:
    """An authenticator that is installed and not configured."""

    @hookimpl
    def configure(self) -> None:
        raise NotConfigured("no file of passwords is named")

    @hookimpl
    def authenticate(self) -> None:
        """Nobody asks here."""


def test_anonymous_clients_come_in_where_only_this_host_can_reach_the_broker() -> None:
    """On loopback without an authenticator everybody is let in."""
    assert why(put_together(), "anonymous") is None


def test_a_broker_that_lets_everybody_in_listens_on_loopback_only() -> None:
    """Beyond loopback the assembly is refused, with what to do."""
    with pytest.raises(AssemblyError, match=r"listen beyond loopback without authentication: .*--allow-anonymous"):
        put_together(only_loopback=False)


@pytest.mark.parametrize("authenticator", [Password(), Tickets()])
@pytest.mark.parametrize("only_loopback", [True, False])
def test_an_authenticator_keeps_anonymous_clients_out(authenticator: Any, only_loopback: bool) -> None:
    """Who installs an authenticator, of either sort, need not say that it guards the door."""
    assembly = put_together({"guard": authenticator}, only_loopback=only_loopback)

    assert why(assembly, "anonymous") == "guard authenticates"


@pytest.mark.parametrize("only_loopback", [True, False])
def test_anonymous_clients_may_be_allowed(only_loopback: bool) -> None:
    """Where the settings say so they come in beside an authenticator and from everywhere."""
    assembly = put_together({"guard": Password()}, allow_anonymous=True, only_loopback=only_loopback)

    assert why(assembly, "anonymous") is None
    assert [one.plugin for one in assembly.manager.implementations("authenticate")] == ["guard", "anonymous"]


def test_anonymous_clients_may_be_forbidden() -> None:
    """Where the settings say so nobody comes in, not even from this host."""
    assembly = put_together(allow_anonymous=False, only_loopback=False)

    assert why(assembly, "anonymous") == "broker.allow_anonymous is false"


def test_an_authenticator_that_is_not_configured_guards_nothing() -> None:
    """It counts as absent: on loopback anonymous clients come in, beyond it the assembly is refused."""
    assert why(put_together({"guard": Absent()}), "anonymous") is None
    with pytest.raises(AssemblyError, match="beyond loopback without authentication"):
        put_together({"guard": Absent()}, only_loopback=False)


def test_a_disabled_anonymous_plugin_needs_no_rule() -> None:
    """Who disables it may listen everywhere: nobody is let in by default."""
    selection = Selection(disabled=frozenset({"anonymous"}))

    assembly = put_together(selection=selection, only_loopback=False)

    assert "anonymous" not in assembly.manager.active


# Configuring


class Recorder:
    """Remembers the context it was configured with."""

    def __init__(self, order: list[str] | None = None) -> None:
        self.context: Context | None = None
        self.order = [] if order is None else order

    @hookimpl
    def configure(self, context: Context) -> None:
        self.context = context
        self.order.append(context.name)


def test_each_plugin_gets_a_context_of_its_own() -> None:
    """With its name, its settings, and the broker's node and clock."""
    recorder = Recorder()

    def settings_of(name: str, settings_class: Any) -> Any:
        return settings_class() if settings_class else f"settings of {name}"

    assembly = put_together({"recorder": recorder}, settings_of=settings_of)

    context = recorder.context
    assert context is assembly.contexts["recorder"]
    assert (context.name, context.settings) == ("recorder", "settings of recorder")
    assert (context.node, context.clock) == (NODE, assembly.clock)


def test_plugins_are_configured_in_the_order_of_the_settings() -> None:
    """The order of hooks is that of configuration too."""
    order: list[str] = []

    put_together({name: Recorder(order) for name in "abc"}, selection=Selection(order=("c", "a")))

    assert order == ["c", "a", "b"]


def test_a_section_is_parsed_into_the_plugins_class() -> None:
    """The class that settings_class answers is handed to the parser; who has none hands it nothing."""

    @frozen
    class Section:
        size: int = 3

    class Sized(Recorder):
        @hookimpl
        def settings_class(self) -> type[Any]:
            return Section

    asked: dict[str, Any] = {}
    sized = Sized()

    def settings_of(name: str, settings_class: Any) -> Any:
        asked[name] = settings_class
        return settings_class and settings_class()

    put_together({"sized": sized, "plain": Recorder()}, settings_of=settings_of)

    assert (asked["sized"], asked["plain"]) == (Section, None)
    assert sized.context is not None
    assert sized.context.settings == Section(3)


def test_mistakes_in_several_sections_are_told_together() -> None:
    """An operator sees all of them at once, and no plugin is configured."""
    order: list[str] = []

    def parse(name: str, settings_class: Any) -> Any:
        if name in ("a", "c"):
            raise SettingsError([f"{name}.size is missing", f"{name}.colour is no colour"])

    with pytest.raises(SettingsError) as caught:
        put_together({name: Recorder(order) for name in "abc"}, settings_of=parse)

    assert caught.value.problems == (
        "a.size is missing",
        "a.colour is no colour",
        "c.size is missing",
        "c.colour is no colour",
    )
    assert order == []


def test_a_plugin_that_is_not_configured_abstains_from_everything() -> None:
    """None of its hooks is called; it is listed with the reason."""
    assembly = put_together({"guard": Absent()})

    assert why(assembly, "guard") == "not configured: no file of passwords is named"
    assert "guard" not in [one.plugin for one in assembly.manager.implementations("authenticate")]


@pytest.mark.parametrize(
    "selection",
    [
        Selection(order=("guard",)),
        Selection(only=("guard",)),
        Selection(sections=frozenset({"guard"})),
        Selection(services={"queue": "guard"}),
    ],
)
def test_a_plugin_that_the_settings_name_must_be_configured(selection: Selection) -> None:
    """A guard that somebody counts on must not vanish quietly."""
    text = "plugin 'guard' is named in the settings but not configured: no file of passwords is named"

    with pytest.raises(AssemblyError, match=text):
        put_together({"guard": Absent()}, selection=selection)


def test_a_plugin_that_another_needs_must_be_configured() -> None:
    """A plugin that abstained is as good as missing to the one that needs it."""

    class Needy:
        @hookimpl
        def requirements(self) -> Requirements:
            return Requirements(SPI_VERSION, plugins=("guard",))

    with pytest.raises(AssemblyError, match="plugin 'needy' needs plugin 'guard', which is not active"):
        put_together({"guard": Absent(), "needy": Needy()})


@pytest.mark.parametrize(
    ("hook", "text"),
    [
        ("configure", "plugin 'broken' can't be configured: ValueError: broken"),
        ("settings_class", "plugin 'broken' failed in settings_class: ValueError: broken"),
        ("requirements", "plugin 'broken' failed in requirements: ValueError: broken"),
        *((hook, f"plugin 'broken' failed to provide the {family} service") for family, hook in PROVIDERS.items()),
    ],
)
def test_a_plugin_that_raises_in_the_assembly_is_named(hook: str, text: str) -> None:
    """Whatever goes wrong in a plugin while the broker is put together, its name is in the one sentence."""
    plugin = type("Broken", (), {hook: hookimpl(lambda self: broken())})()

    with pytest.raises(AssemblyError, match=text):
        put_together({"broken": plugin})


@pytest.mark.parametrize("hook", ["configure", "settings_class"])
def test_hooks_of_the_assembly_must_answer_at_once(hook: str) -> None:
    """There is nobody who could wait for a Deferred yet."""
    plugin = type("Slow", (), {hook: hookimpl(lambda self: Deferred())})()

    with pytest.raises(AssemblyError, match=f"plugin 'slow'.*{hook} must answer at once"):
        put_together({"slow": plugin})


def test_settings_that_a_plugin_finds_fault_with_are_an_operators_mistake() -> None:
    """A SettingsError of configure goes through as it is."""

    class Strict:
        @hookimpl
        def configure(self) -> None:
            raise SettingsError(["strict.size is odd"])

    with pytest.raises(SettingsError, match=r"strict\.size is odd"):
        put_together({"strict": Strict()})


# Services


def test_built_ins_serve_every_family() -> None:
    """Without installed plugins the defaults provide everything."""
    assert put_together().providers == DEFAULTS


def test_an_installed_plugin_serves_its_family_alone() -> None:
    """What it provides is what the broker uses; the other families keep theirs."""
    store = MemoryQueueStore()

    class Queues:
        @hookimpl
        def queue_store(self, context: Context) -> MemoryQueueStore:
            assert context.name == "queues"
            return store

    assembly = put_together({"queues": Queues()})

    assert assembly.stores.queue is store
    assert assembly.providers == {**DEFAULTS, "queue": "queues"}


@pytest.mark.parametrize(("family", "hook"), PROVIDERS.items())
@pytest.mark.parametrize("answer", [None, "a store", succeed(None)])
def test_a_provider_must_answer_the_service(family: str, hook: str, answer: Any) -> None:
    """What is no such service is refused by plugin, hook and type."""
    plugin = type("Wrong", (), {hook: hookimpl(lambda self: answer)})()

    with pytest.raises(
        AssemblyError, match=f"plugin 'wrong': {hook} returned a {type(answer).__name__}, which is no"
    ):
        put_together({"wrong": plugin})


def test_a_provider_that_abstained_does_not_serve() -> None:
    """Where the only installed provider is not configured the built-in serves."""

    class Queues(Absent):
        @hookimpl
        def queue_store(self) -> Any:
            raise AssertionError("an abstaining plugin was asked")

    assert put_together({"queues": Queues()}).providers["queue"] == "memory"


# Limiters


class Limiter:
    """Asks to be asked."""

    def __init__(self, needs: LimiterNeeds) -> None:
        self.needs = needs

    @hookimpl
    def limiter_needs(self) -> LimiterNeeds:
        return self.needs

    @hookimpl
    def acquire(self) -> None:
        """Nobody asks here."""


def test_needs_of_limiters_are_asked_for() -> None:
    """Each limiter's, under its name."""
    selection = Selection(disabled=frozenset({"rate_limits"}))
    first = Limiter(LimiterNeeds(frozenset({ResourceKind.CONNECT})))
    second = Limiter(LimiterNeeds(frozenset({ResourceKind.PUBLISH}), topics=True))

    needs = put_together({"first": first, "second": second}, selection=selection).limiter_needs

    assert needs == {"first": first.needs, "second": second.needs}


def test_nobody_is_asked_without_limiters() -> None:
    """Where no plugin implements acquire there is nothing to ask for."""
    assembly = put_together(selection=Selection(disabled=frozenset({"rate_limits"})))

    assert assembly.limiter_needs == {}


# Contexts


def test_a_context_is_of_use_when_the_broker_is_assembled() -> None:
    """Before that a plugin that publishes is told of its mistake; afterwards its message is the broker's."""
    recorder = Recorder()
    assembly = put_together({"recorder": recorder})
    context = recorder.context
    assert context is not None

    with pytest.raises(RuntimeError, match="plugin 'recorder' used its context before the broker was assembled"):
        context.publish(Message("a"))
    broker = Broker(assembly, lambda call: None, lambda n: "0" * n, "test")
    context.publish(Message("a"))

    assert broker.runtime.statistics.unrouted.value == 1
    assert context.client("nobody") is None
