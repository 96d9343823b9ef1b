"""Assembles a broker from settings and plugins, and rejects early what can't work."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from attrs import define, field
from twisted.logger import Logger

from kinmqtt.broker.allocator import trimmer
from kinmqtt.broker.connection.listener import ListenerPlan
from kinmqtt.broker.held_events import bound_events
from kinmqtt.broker.overload import resident_bytes
from kinmqtt.broker.promises import check_promises
from kinmqtt.broker.statistics import Statistics
from kinmqtt.broker.topic_spaces import ClaimedSpaces, TopicSpaces
from kinmqtt.broker.turn.batch import Stores
from kinmqtt.builtins import ANONYMOUS, CERTIFICATE, DEFAULTS, PERSISTENT_DEFAULTS
from kinmqtt.hooks.answers import EXPECTED, WrongAnswer
from kinmqtt.hooks.asyncio_services import on_asyncio
from kinmqtt.hooks.awaitables import is_pending
from kinmqtt.hooks.context import PluginContext
from kinmqtt.hooks.denial_log import DenialLogger
from kinmqtt.hooks.manager import PROVIDERS, Implementation, PluginManager
from kinmqtt.hooks.registry import Hooks
from kinmqtt.settings import BrokerSettings, LimitSettings
from kinmqtt.settings.machine import Machine
from kinmqtt_spi.errors import AssemblyError, NotConfigured, NotWanted, SettingsError
from kinmqtt_spi.metrics import MetricRegistry
from kinmqtt_spi.services.cluster import ClusterBackend
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.services.event import EventFeed, EventLog, HoldBounds
from kinmqtt_spi.services.limiter import LimiterNeeds
from kinmqtt_spi.services.plugin import Clock
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.services.subscription import SubscriptionIndex
from kinmqtt_spi.values import NodeIdentity

log = Logger("kinmqtt.assembly")

T = TypeVar("T")


@define(slots=True)
class Environment:
    """What an assembly needs of its environment."""

    node: NodeIdentity
    clock: Clock
    in_thread: Callable[[Callable[[], Any]], Awaitable[Any]]
    listeners: Sequence[ListenerPlan]
    memory_bytes: Callable[[], int | None] = resident_bytes
    """Returns the resident memory of this process in bytes; ``None`` where it is unknown."""
    machine: Callable[[], Machine] = Machine
    """Returns the memory and files that this process may use; by default they are unknown."""
    trim: Callable[[], object] = field(factory=trimmer)
    """Releases free memory to the system."""
    denials: DenialLogger = field(factory=DenialLogger)
    """Logs denials of authorizers; disabled by default."""


@define(slots=True)
class Assembly:
    """The chosen plugins with their settings, and the services they provide."""

    settings: BrokerSettings
    limits: LimitSettings
    node: NodeIdentity
    clock: Clock
    metrics: MetricRegistry
    statistics: Statistics
    manager: PluginManager
    hooks: Hooks
    contexts: Mapping[str, PluginContext]
    stores: Stores
    index: SubscriptionIndex
    feed: EventFeed
    cluster: ClusterBackend
    arbiter: ClusterArbiter | None
    """``None`` if no plugin provides one."""
    limiter_needs: Mapping[str, LimiterNeeds]
    """By name of the limiter."""
    providers: Mapping[str, str]
    """The plugin that serves each exclusive family."""
    listeners: tuple[ListenerPlan, ...]
    memory_bytes: Callable[[], int | None]
    machine: Callable[[], Machine]
    trim: Callable[[], object]
    denials: DenialLogger
    default_authenticators: tuple[str, ...] | None
    """The authenticators of listeners that name none; ``None`` for all."""
    spaces: TopicSpaces
    """Topics that begin with ``$``, and the plugins that claimed them."""

    @property
    def writes_data_directory(self) -> bool:
        """Whether a built-in store persists something in the data directory."""
        return any(plugin in PERSISTENT_DEFAULTS.values() for plugin in self.providers.values())


def assemble(
    settings: BrokerSettings,
    limits: LimitSettings,
    plugin_settings: Callable[[str, type[Any] | None], Any],
    manager: PluginManager,
    environment: Environment,
    events: HoldBounds | None = None,
) -> Assembly:
    """Configure the plugins and have them provide their services.

    ``plugin_settings`` parses a plugin's section into its settings class; ``events`` is ``[events]``. Raises
    :class:`AssemblyError` or :class:`SettingsError`; nothing is started before.
    """
    metrics = MetricRegistry(gauge_failed=_gauge_failed)
    claims = ClaimedSpaces()
    contexts = _configure(plugin_settings, manager, metrics, environment, settings.data_directory, claims)
    # Authenticators that are installed but not configured were removed above: they protect nothing.
    default_authenticators = _decide_about_authenticators(settings, manager, environment.listeners)
    manager.check_needed_plugins()
    defaults = DEFAULTS if settings.data_directory is None else DEFAULTS | PERSISTENT_DEFAULTS
    provided = _Provided(manager, contexts, defaults)
    stores = Stores(
        cast(QueueStore, provided.get("queue", QueueStore)),
        cast(SessionStore, provided.get("session", SessionStore)),
        cast(RetainStore, provided.get("retain", RetainStore)),
        cast(EventLog, provided.get("event", EventLog)),
    )
    bound_events(stores.event, events or HoldBounds(), metrics)
    feed = cast(EventFeed, provided.get("feed", EventFeed, stores.event))
    cluster = cast(ClusterBackend, provided.get("cluster", ClusterBackend))
    arbiter = cast("ClusterArbiter | None", provided.get_optional("arbiter", ClusterArbiter))
    check_promises(settings.require, cluster, stores, provided.by)
    return Assembly(
        settings,
        limits.resolved(environment.machine()),
        environment.node,
        environment.clock,
        metrics,
        Statistics(metrics),
        manager,
        Hooks(manager, environment.clock, metrics),
        contexts,
        stores,
        cast(SubscriptionIndex, provided.get("subscription", SubscriptionIndex)),
        feed,
        cluster,
        arbiter,
        _limiter_needs(manager),
        provided.by,
        tuple(environment.listeners),
        environment.memory_bytes,
        environment.machine,
        environment.trim,
        environment.denials,
        default_authenticators,
        claims.settled(manager.active),
    )


class _Provided:
    """The services of the exclusive families."""

    def __init__(
        self, manager: PluginManager, contexts: Mapping[str, PluginContext], defaults: Mapping[str, str]
    ) -> None:
        self._manager = manager
        self._defaults = defaults
        self._contexts = contexts
        self.by: dict[str, str] = {}

    def get(self, family: str, interface: type[Any], *arguments: object) -> object:
        """Return a family's service; ``arguments`` are those of its hook after the context."""
        return self._service(self._manager.provider(family, self._defaults[family]), family, interface, *arguments)

    def get_optional(self, family: str, interface: type[Any]) -> object | None:
        implementation = self._manager.optional_provider(family)
        return None if implementation is None else self._service(implementation, family, interface)

    def _service(
        self, implementation: Implementation, family: str, interface: type[Any], *arguments: object
    ) -> object:
        plugin = implementation.plugin
        hook = PROVIDERS[family]
        try:
            service = implementation.call(self._contexts[plugin], *arguments)
        except Exception as error:
            raise AssemblyError(
                f"plugin {plugin!r} failed to provide the {family} service: {type(error).__name__}: {error}"
            ) from error
        if not isinstance(service, interface):
            raise AssemblyError(
                f"plugin {plugin!r}: {hook} returned a {type(service).__name__}, which is no {interface.__name__}"
            )
        self.by[family] = plugin
        return on_asyncio(service) if implementation.asyncio else service


def _decide_about_authenticators(
    settings: BrokerSettings, manager: PluginManager, listeners: Sequence[ListenerPlan]
) -> tuple[str, ...] | None:
    """Remove the built-in authenticators that no listener uses; returns those of listeners that name none.

    Anonymous clients are accepted where the settings allow it, or where the broker is reachable from loopback only.
    """
    able = {
        implementation.plugin
        for hook in ("authenticate", "exchange")
        for implementation in manager.implementations(hook)
    }
    named: set[str] = set()
    for plan in listeners:
        for plugin in plan.settings.authenticators or ():
            if plugin not in able:
                able_names = ", ".join(sorted(able)) or "none"
                raise AssemblyError(
                    f"{plan.place or plan.name}: authenticators names {plugin!r}, which is no active authenticator; "
                    f"active authenticators: {able_names}"
                )
            named.add(plugin)
    out = {}
    if CERTIFICATE in able:
        out[CERTIFICATE] = "no listener names it among its authenticators"
    if ANONYMOUS in able:
        why = _why_not_anonymous(settings, sorted(able - {ANONYMOUS, CERTIFICATE}), listeners)
        if why is not None:
            out[ANONYMOUS] = why
    for plugin, reason in out.items():
        if plugin not in named:
            manager.deactivate(plugin, reason)
    if not out.keys() & named:
        return None
    return tuple(plugin for plugin in manager.active if plugin in able and plugin not in out)


def _why_not_anonymous(
    settings: BrokerSettings, others: Sequence[str], listeners: Sequence[ListenerPlan]
) -> str | None:
    """Returns why listeners without authenticators reject anonymous clients; ``None`` where they accept them."""
    if settings.allow_anonymous is not None:
        return None if settings.allow_anonymous else "broker.allow_anonymous is false"
    if others:
        return f"{others[0]} authenticates"
    beyond = [plan for plan in listeners if plan.settings.authenticators is None and not plan.is_local]
    if not beyond:
        return None
    raise AssemblyError(
        "the broker would listen beyond loopback without authentication: install an authenticator, listen "
        "on loopback only, or set broker.allow_anonymous = true (`--allow-anonymous`); listeners: "
        + ", ".join(plan.name for plan in beyond)
    )


def _configure(
    plugin_settings: Callable[[str, type[Any] | None], Any],
    manager: PluginManager,
    metrics: MetricRegistry,
    environment: Environment,
    data: Path | None,
    claims: ClaimedSpaces,
) -> dict[str, PluginContext]:
    classes = {i.plugin: _call(i.plugin, "settings_class", i.call) for i in manager.implementations("settings_class")}
    configure = {i.plugin: i.call for i in manager.implementations("configure")}
    contexts: dict[str, PluginContext] = {}
    problems: list[str] = []
    for name in manager.active:
        try:
            parsed = plugin_settings(name, classes.get(name))
        except SettingsError as error:
            problems.extend(error.problems)
            continue
        contexts[name] = PluginContext(
            name,
            parsed,
            environment.node,
            environment.clock,
            Logger(f"kinmqtt.plugin.{name}"),
            metrics,
            environment.in_thread,
            data,
            partial(manager.leave_out, name),
            partial(claims.take, name),
            manager.uses_asyncio(name),
        )
    if problems:
        raise SettingsError(problems)
    for name, call in configure.items():
        _configure_one(manager, name, call, contexts)
    return contexts


def _configure_one(
    manager: PluginManager, name: str, call: Callable[..., Any], contexts: Mapping[str, PluginContext]
) -> None:
    try:
        _at_once("configure", call(contexts[name]))
    except NotConfigured as error:
        selection = manager.selection
        named = selection.services.values() if isinstance(error, NotWanted) else selection.named
        if name in named:
            raise AssemblyError(f"plugin {name!r} is named in the settings but not configured: {error}") from error
        manager.deactivate(name, f"not configured: {error}")
        log.debug("plugin {name} is installed but not configured: {error}", name=name, error=error)
    except SettingsError:
        raise
    except Exception as error:
        raise AssemblyError(f"plugin {name!r} can't be configured: {type(error).__name__}: {error}") from error


def _limiter_needs(manager: PluginManager) -> dict[str, LimiterNeeds]:
    """Returns the resources that each limiter wants to be asked for."""
    asked = {i.plugin: i.call for i in manager.implementations("limiter_needs")}
    needs = {
        plugin: _call(plugin, "limiter_needs", asked[plugin]) if plugin in asked else LimiterNeeds()
        for plugin in (implementation.plugin for implementation in manager.implementations("acquire"))
    }
    for plugin, its in needs.items():
        unasked = sorted(kind.value for kind in its.releases - its.kinds)
        if unasked:
            raise AssemblyError(
                f"plugin {plugin!r}: limiter_needs has {', '.join(unasked)} in releases but not in kinds"
            )
    return needs


def _call(plugin: str, hook: str, call: Callable[[], T]) -> T:
    try:
        answer: T = EXPECTED[hook].checked(hook, _at_once(hook, call()))
        return answer
    except WrongAnswer as error:
        raise AssemblyError(f"plugin {plugin!r}: {error}") from error
    except Exception as error:
        raise AssemblyError(f"plugin {plugin!r} failed in {hook}: {type(error).__name__}: {error}") from error


def _at_once(hook: str, answer: T) -> T:
    """Returns the answer of a hook that is declared synchronous; raises ``TypeError`` for one to wait for."""
    if is_pending(answer):
        if hasattr(answer, "close"):
            answer.close()
        raise TypeError(f"{hook} must answer at once, and answered something to wait for")
    return answer


def _gauge_failed(name: str, error: BaseException) -> None:
    log.error("gauge {name} can't be read: {error}", name=name, error=error)
