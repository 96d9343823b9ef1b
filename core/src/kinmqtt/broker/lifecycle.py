"""The life of a broker and its plugins: start, reload, health and stop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from functools import partial
from math import ceil
from typing import TYPE_CHECKING, Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.cluster.joining import Joining
from kinmqtt.broker.sys_topics import SysPublisher, own_topics
from kinmqtt.hooks.answers import WrongAnswer
from kinmqtt.hooks.awaitables import TimeLimitExceeded, as_deferred, limited, pause, resolve, run
from kinmqtt.hooks.calls import Call
from kinmqtt.hooks.context import PluginContext
from kinmqtt_spi.errors import AssemblyError, SettingsError, SpiError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.plugin import Health, HealthState
from kinmqtt_spi.values import Maybe, Message

if TYPE_CHECKING:
    from kinmqtt.broker.assembly import Assembly
    from kinmqtt.broker.bridging import Bridging
    from kinmqtt.broker.cluster.figures import NodeFigures
    from kinmqtt.broker.cluster.listener import Nodes
    from kinmqtt.broker.connection.listener import Listener
    from kinmqtt.broker.housekeeping import Housekeeping
    from kinmqtt.broker.outboxes.table import Outboxes
    from kinmqtt.broker.sampling import Sampler
    from kinmqtt.broker.services import Services
    from kinmqtt.settings import LimitSettings

log = Logger("kinmqtt.broker")

FAREWELL_LIMIT_S: Final = 3.0
"""How long a stopping broker waits for clients to read its last packets."""

WAVE_S: Final = 0.5
"""The time between two waves of clients that a leaving node disconnects."""

WAVE_CLIENTS: Final = 500
"""The clients of a wave; more where they would not all be gone in time."""

STOP_LIMIT_S: Final = 10.0
"""How long plugins may take to drain, and each of them to stop."""


class Lifecycle:
    """Starts, reloads and stops a broker's plugins, services and housekeeping."""

    def __init__(
        self,
        assembly: Assembly,
        services: Services,
        listeners: Mapping[str, Listener],
        housekeeping: Housekeeping,
        sampler: Sampler,
        nodes: Nodes,
        figures: NodeFigures,
        outboxes: Outboxes,
        bridging: Bridging,
        publish: Callable[[Message], None],
        version: str,
    ) -> None:
        """``publish`` publishes a message of the broker's own; ``version`` appears in ``$SYS``."""
        self._assembly = assembly
        self.joining = Joining(assembly.cluster)
        self._services = services
        self._runtime = services.runtime
        self._listeners = listeners
        self._housekeeping = housekeeping
        self._sampler = sampler
        self._nodes = nodes
        self._figures = figures
        self._outboxes = outboxes
        self._bridging = bridging
        self._publish = publish
        self._version = version
        self._started: list[PluginContext] = []
        self._sys: SysPublisher | None = None
        """``None`` before the start, and where nothing is published below ``$SYS``."""
        self.is_restored = False
        """Whether all sessions of the stores are restored."""
        self._awaiting_restore: list[Deferred[None]] = []

    def restored(self) -> Deferred[None]:
        """Fires when all sessions of the stores are restored."""
        restored: Deferred[None] = Deferred()
        if self.is_restored:
            restored.callback(None)
        else:
            self._awaiting_restore.append(restored)
        return restored

    async def start(self) -> None:
        """Start plugins and services, and restore the state of the stores; listeners open afterwards.

        Raises :class:`AssemblyError` that names the plugin which could not start; all that was started is stopped.
        """
        cluster = self._assembly.cluster
        in_cluster = False
        try:
            await self._start_plugins()
            for group in self._assembly.stores.event.forget_unheld():
                log.info("events are no longer stored for group {group}: no plugin holds it", group=group)
            in_cluster = True
            await self.joining.join(self._runtime.node, self._nodes)
            await self._services.retained.load_newest_version()
            restored = await self._services.sessions.restore()
            # Only now: other nodes count on a node that is UP for the sessions that it has.
            self._services.router.announce()
            await resolve(cluster.up())
            await self._nodes.retained_sync.join()
            await self._nodes.succession.settled()
            await self._outboxes.open()
        except BaseException:
            if in_cluster:
                self._nodes.retained_sync.stop()
                self._nodes.succession.stop()
                await _attempt("the cluster backend", cluster.stop)
            await self._stop_plugins()
            raise
        self.is_restored = True
        for waiting in self._awaiting_restore:
            waiting.callback(None)
        self._awaiting_restore.clear()
        if restored:
            log.info("{count} sessions restored", count=restored)
        self._begin_intervals()
        self._housekeeping.start()
        self._bridging.start()

    def _begin_intervals(self) -> None:
        """Schedule publishing of ``$SYS`` and sampling of metrics at each interval."""
        topics = [*own_topics(self._services, self._version), *self._bridging.sys_topics()]
        for _plugin, more in self._runtime.hooks.sys_topics.at_once():
            topics.extend(more or ())
        interval_s = self._runtime.settings.sys_interval_s
        if interval_s:
            self._sys = SysPublisher(self._publish, topics)
            self._housekeeping.every(interval_s, partial(self._publish_sys, self._sys))
            self._housekeeping.every(interval_s, self._sampler.sample)

    def _publish_sys(self, publisher: SysPublisher) -> None:
        self._runtime.count_discarded()
        self._figures.share(publisher.publish())

    async def reload(
        self, settings_of: Callable[[str, type[Any] | None], Any], limits: LimitSettings | None = None
    ) -> list[str]:
        """Reload every plugin with its section of new settings; see :meth:`kinmqtt.broker.broker.Broker.reload`."""
        calls = self._runtime.hooks.reload.each()
        parsed: dict[str, Any] = {}
        problems: list[str] = []
        for call in calls:
            try:
                parsed[call.plugin] = settings_of(call.plugin, self._settings_class(call.plugin))
            except SettingsError as error:
                problems.extend(error.problems)
        if problems:
            raise SettingsError(problems)
        if limits is not None:
            self._set_limits(limits.resolved(self._assembly.machine()))
        left: list[str] = []
        for call in calls:
            try:
                left.extend(f"{call.plugin}: {line}" for line in await resolve(call(parsed[call.plugin])) or ())
            except WrongAnswer as error:
                call.failed(error)
                left.append(f"{call.plugin}: its current settings are unknown: {error}")
            except Exception as error:
                call.failed(error)
                left.append(f"{call.plugin}: keeps its old settings: {type(error).__name__}: {error}")
        left += await self._bridging.reload(STOP_LIMIT_S)
        if self._sys is not None:
            self._sys.add(self._bridging.sys_topics())
        return left

    def _settings_class(self, plugin: str) -> type[Any] | None:
        settings = self._assembly.contexts[plugin].settings
        return None if settings is None else type(settings)

    def _set_limits(self, limits: LimitSettings) -> None:
        self._runtime.limits = limits
        self._runtime.hooks.limit_notices(limits.notice_time_limit_s)
        for listener in self._listeners.values():
            listener.limit(limits)
        self._runtime.buffers.limit(limits)

    async def stop(self) -> None:
        """Disconnect the clients, drain, and stop everything; the listeners are closed before."""
        clock = self._runtime.clock
        await _attempt("the sources", lambda: self._bridging.stop_sources(STOP_LIMIT_S))
        if self._nodes.are_others_up:
            await _attempt("the cluster backend", self._assembly.cluster.leaving)
            await self._send_clients_away()
        self._housekeeping.stop()
        for connection in list(self._services.connections):
            connection.fail(ReasonCode.SERVER_SHUTTING_DOWN, "the broker stops")
        if self._services.connections:
            # The last packets are still on their way through TLS and sockets; an earlier end would cut them off.
            try:
                await limited(self._services.emptied(), clock, FAREWELL_LIMIT_S)
            except TimeLimitExceeded:
                log.info(
                    "{count} clients have not read the broker's last packets", count=len(self._services.connections)
                )
        await _attempt("the sinks", lambda: self._bridging.stop_sinks(STOP_LIMIT_S))
        await _attempt("pending work", lambda: limited(self._runtime.slices.drained(), clock, STOP_LIMIT_S))
        await _attempt("the stores", lambda: limited(self._runtime.turn.drained(), clock, STOP_LIMIT_S))
        if self._runtime.settings.sys_interval_s:
            # Sends the counts since the last interval.
            self._sampler.finish()
        hooks = self._runtime.hooks
        try:
            await limited(run(hooks.drained()), clock, STOP_LIMIT_S)
        except TimeLimitExceeded:
            hooks.give_up_notices()
        await self._drain_plugins()
        self._runtime.log_lines.sum_up()
        cluster = self._assembly.cluster
        leave_s = max(STOP_LIMIT_S, self._runtime.settings.leave_s)
        await _attempt("the cluster backend", lambda: cluster.leave(leave_s))
        self._nodes.retained_sync.stop()
        self._nodes.succession.stop()
        self._services.router.announcer.close()
        await _attempt("the cluster backend", cluster.stop)
        await self._stop_plugins()

    async def _send_clients_away(self) -> None:
        """Disconnect the clients in waves: all at once, they would overwhelm the nodes that take them."""
        connections = list(self._services.connections)
        waves = max(1.0, self._runtime.settings.leave_s / WAVE_S)
        size = max(WAVE_CLIENTS, ceil(len(connections) / waves))
        for start in range(0, len(connections), size):
            if start:
                await pause(self._runtime.clock, WAVE_S)
            for connection in connections[start : start + size]:
                if not connection.is_closed():
                    connection.fail(ReasonCode.USE_ANOTHER_SERVER, "this node leaves its cluster")

    async def health(self) -> Mapping[str, Health]:
        """Returns each plugin's health; see :meth:`kinmqtt.broker.broker.Broker.health`."""
        found: dict[str, Health] = {}
        for call in self._runtime.hooks.health.each():
            try:
                found[call.plugin] = await resolve(call())
            except Exception as error:
                call.failed(error)
                found[call.plugin] = Health(HealthState.FAILED, f"{type(error).__name__}: {error}")
        for plugin, overdue in self._runtime.hooks.overdue_notices().items():
            found[plugin] = _degraded(found.get(plugin), overdue)
        return await self._bridging.health(found)

    def _is_provider(self, call: Call) -> bool:
        """Whether a plugin provides a service: it starts before the plugins that may use it, and stops after them."""
        return call.plugin in self._assembly.providers.values()

    def _in_stop_order(self, calls: Sequence[Call]) -> list[Call]:
        """Returns the calls in the reverse of the order of starting."""
        others = [call for call in calls if not self._is_provider(call)]
        return [*reversed(others), *reversed([call for call in calls if self._is_provider(call)])]

    async def _start_plugins(self) -> None:
        for call in sorted(self._runtime.hooks.start.each(), key=lambda call: not self._is_provider(call)):
            context = self._assembly.contexts[call.plugin]
            self._started.append(context)
            try:
                await resolve(call(context))
            except Exception as error:
                what = str(error) if isinstance(error, SpiError) else f"{type(error).__name__}: {error}"
                raise AssemblyError(f"plugin {call.plugin!r} can't start: {what}") from error

    async def _drain_plugins(self) -> None:
        """Drain all plugins at the same time, each until the deadline."""
        clock = self._runtime.clock
        draining: list[tuple[Call, Deferred[None]]] = []
        for call in self._runtime.hooks.drain.each():
            try:
                answer = call(STOP_LIMIT_S)
            except Exception as error:
                call.failed(error)
                continue
            if isinstance(answer, Awaitable):
                draining.append((call, limited(as_deferred(answer), clock, STOP_LIMIT_S)))
        for call, drained in draining:
            try:
                await drained
            except Exception as error:
                call.failed(error)

    async def _stop_plugins(self) -> None:
        """Stop plugins in the reverse of the order of starting: those that were started, or have no ``start``."""
        started = {context.name for context in self._started}
        starting = {call.plugin for call in self._runtime.hooks.start.each()}
        for call in self._in_stop_order(self._runtime.hooks.stop.each()):
            if call.plugin in starting and call.plugin not in started:
                continue
            try:
                await resolve(call())
            except Exception as error:
                call.failed(error)


def _degraded(health: Health | None, why: str) -> Health:
    """Returns a plugin's health, lowered to degraded for a reason that the broker sees."""
    if health is None:
        return Health(HealthState.DEGRADED, why)
    state = HealthState.DEGRADED if health.state is HealthState.HEALTHY else health.state
    return Health(state, f"{why}; {health.text}" if health.text else why)


async def _attempt(what: str, work: Callable[[], Maybe[None] | Coroutine[Any, Any, None]]) -> None:
    """Run a step of a stop and log its error, so that the stop goes on."""
    try:
        await resolve(work())
    except Exception:
        log.failure("{what} could not be finished", what=what)
