"""The composition root: every part of the broker, and every arrow between them, is made here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.logger import Logger

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.buffers import Buffers
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.listener import Listener
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.broker.housekeeping import Housekeeping
from kinmqtt.broker.keepalive import Wheel
from kinmqtt.broker.limiting import Limiting
from kinmqtt.broker.message.publication import Publication
from kinmqtt.broker.overload import Overload
from kinmqtt.broker.ownership.sessions import Sessions
from kinmqtt.broker.rights import Rights
from kinmqtt.broker.routing.due import Due
from kinmqtt.broker.routing.publisher import Publishing
from kinmqtt.broker.routing.retained import Retained
from kinmqtt.broker.routing.router import Routed, Router
from kinmqtt.broker.routing.traffic import TrafficLedger, TrafficSampling
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.services import Services
from kinmqtt.broker.sys_topics import SysPublisher, own_topics
from kinmqtt.broker.trimming import Trimming
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.broker.turn.turn import Turn
from kinmqtt.hooks.answers import WrongAnswer
from kinmqtt.hooks.awaitables import TimeLimitExceeded, as_deferred, limited, run, settle
from kinmqtt.hooks.calls import Call
from kinmqtt.hooks.context import PluginContext
from kinmqtt.hooks.messages import check_message
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.errors import AssemblyError, SettingsError, SpiError
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import AuthorizationRequest, Scope
from kinmqtt_spi.services.cluster import Member, RouteChange
from kinmqtt_spi.services.plugin import DeliveryResult, Health, HealthState
from kinmqtt_spi.values import Client, Commit, Decision, Maybe, Message, NodeIdentity

log = Logger("kinmqtt.broker")

FAREWELL_LIMIT_S: Final = 3.0
"""How long the last words to clients may take to go out when the broker stops."""

STOP_LIMIT_S: Final = 10.0
"""How long plugins may take to drain, and each of them to stop."""


class Broker:
    """A broker, assembled and ready to start. Listeners hand it connections; it opens none itself."""

    def __init__(
        self,
        assembly: Assembly,
        call_soon: Callable[[Callable[[], object]], object],
        random_hex: Callable[[int], str],
        version: str,
    ) -> None:
        """``call_soon`` makes a call in the next reactor turn; ``version`` is shown in ``$SYS``."""
        hooks = assembly.hooks
        hooks.limit_notices(assembly.limits.notice_time_limit_s)
        slices = Slices(call_soon, assembly.clock.monotonic)
        turn = Turn(assembly.stores, call_soon, slices)
        self.assembly = assembly
        self.connections: set[Peer] = set()
        self.buffers = Buffers(assembly.limits, self.connections, call_soon, assembly.statistics.connections_cut)
        self.runtime = Runtime(
            assembly.settings,
            assembly.limits,
            assembly.node,
            assembly.clock,
            hooks,
            assembly.statistics,
            assembly.stores,
            turn,
            self.buffers,
            slices,
            random_hex,
            Rights(hooks, assembly.spaces),
        )
        self.listeners = {
            plan.name: Listener(
                plan, assembly.limits, hooks, plan.settings.authenticators or assembly.default_authenticators
            )
            for plan in assembly.listeners
        }
        self.wheel = Wheel()
        self.limiting = Limiting(hooks, assembly.limiter_needs, assembly.metrics)
        self.router = Router(self.runtime, assembly.index, assembly.cluster, self._session_of)
        self.fanouts = self.router.fanouts
        self.traffic = TrafficLedger(bool(hooks.traffic_sampled.active and assembly.settings.sys_interval_s))
        self._traffic_sampling = TrafficSampling(call_soon, self._tell_traffic)
        self.retained = Retained(self.runtime, self._epoch_of)
        self.publishing = Publishing(self.runtime, self.router, self.retained)
        self.due = Due(self.runtime, self.publishing, self._session_of)
        self.sessions = Sessions(self.runtime, self.router, self.publishing, self.due, assembly.cluster)
        turn.measure(assembly.clock.monotonic, assembly.statistics.commits.observe)
        turn.when_fenced(self.sessions.fenced)
        assembly.stores.session.on_taken_over(self._taken)
        turn.when_commit_failed(self.sessions.on_commit_failed, self.sessions.unopened)
        self.overload = Overload(
            lambda: self.runtime.limits,
            assembly.memory_bytes,
            self._level_changed,
            self.buffers,
            assembly.statistics.bytes_received,
            assembly.trim,
            call_soon,
            assembly.clock.later,
        )
        trimming = Trimming(
            self.buffers, self.runtime.waiting, self.overload, assembly.clock.monotonic, assembly.trim
        )
        self.housekeeping = Housekeeping(
            assembly.clock,
            slices,
            self.wheel,
            {
                "sessions": self.sessions.expire,
                "left behind": self.sessions.adopt_orphaned,
                "queues": self.sessions.expire_messages,
                "retained": self.retained.expire,
                "overload": self.overload.look,
                "buffers": self.buffers.look,
                "trimming": trimming.look,
                "fan-outs": self._sweep,
                "stores": self._retry,
            },
        )
        self._version = version
        self.services = Services(
            self.runtime,
            self.connections,
            self.wheel,
            self.limiting,
            self.overload,
            self.router,
            self.publishing,
            self.retained,
            self.sessions,
            self.traffic,
        )
        self._started: list[PluginContext] = []
        self._restored = False
        self._awaits_restored: list[Deferred[None]] = []
        for context in assembly.contexts.values():
            context.attach(self)
        self._make_gauges()

    # Life

    async def start(self) -> None:
        """Start plugins and services, and take up what the stores hold; listeners open afterwards.

        Raises :class:`AssemblyError` that names the plugin which could not start; what was started is stopped.
        """
        failure: BaseException | None = None
        in_cluster = False
        restored = 0
        try:
            await self._start_plugins()
            await settle(self.assembly.cluster.start(self.runtime.node, _ClusterNews(self)))
            in_cluster = True
            await self.retained.go_on()
            restored = await self.sessions.restore()
        except BaseException as error:
            failure = error
        if failure is not None:
            if in_cluster:
                await _attempted("the cluster backend", self.assembly.cluster.stop)
            await self._stop_plugins()
            raise failure
        self._restored = True
        for there in self._awaits_restored:
            there.callback(None)
        self._awaits_restored.clear()
        if restored:
            log.info("{count} sessions restored", count=restored)
        topics = own_topics(self.services, self._version)
        for _plugin, more in self.runtime.hooks.sys_topics.at_once():
            topics.extend(more or ())
        if self.runtime.settings.sys_interval_s:
            publisher = SysPublisher(self.publish, topics)
            self.housekeeping.every(self.runtime.settings.sys_interval_s, partial(self._publish_sys, publisher))
            self.housekeeping.every(self.runtime.settings.sys_interval_s, self._sample)
        self.housekeeping.start()

    async def ready(self) -> None:
        """The listeners are open."""
        await self.runtime.hooks.ready()

    async def reload(
        self, settings_of: Callable[[str, type[Any] | None], Any], limits: LimitSettings | None = None
    ) -> list[str]:
        """Give every plugin its section of new settings; answers a line for each thing that could not change.

        New ``limits`` hold for those who connect from now on, and for queues at once. ``settings_of`` parses a
        plugin's section into its settings class. Raises :class:`~kinmqtt_spi.errors.SettingsError` where a section
        has mistakes: then nothing was changed.
        """
        calls = self.runtime.hooks.reload.each()
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
            limits = limits.resolved(self.assembly.machine())
            self.runtime.limits = limits
            self.runtime.hooks.limit_notices(limits.notice_time_limit_s)
            for listener in self.listeners.values():
                listener.limit(limits)
            self.buffers.limit(limits)
        left: list[str] = []
        for call in calls:
            try:
                left.extend(f"{call.plugin}: {line}" for line in await settle(call(parsed[call.plugin])) or ())
            except WrongAnswer as error:
                call.failed(error)
                left.append(f"{call.plugin}: what holds now is not known: {error}")
            except Exception as error:
                call.failed(error)
                left.append(f"{call.plugin}: goes on with its old settings: {type(error).__name__}: {error}")
        return left

    def _settings_class(self, plugin: str) -> type[Any] | None:
        settings = self.assembly.contexts[plugin].settings
        return None if settings is None else type(settings)

    async def stop(self) -> None:
        """Send the clients away, drain, and stop everything; the listeners are closed by now."""
        self.housekeeping.stop()
        for connection in list(self.connections):
            connection.fail(ReasonCode.SERVER_SHUTTING_DOWN, "the broker stops")
        clock = self.runtime.clock
        cluster = self.assembly.cluster
        if self.connections:
            # What was written last is on its way through TLS and sockets: who ends now would cut it off.
            try:
                await limited(self.services.emptied(), clock, FAREWELL_LIMIT_S)
            except TimeLimitExceeded:
                log.info("{count} clients have not read the broker's last words", count=len(self.connections))
        await _attempted("what was left to do", lambda: limited(self.runtime.slices.drained(), clock, STOP_LIMIT_S))
        await _attempted("the stores", lambda: limited(self.runtime.turn.drained(), clock, STOP_LIMIT_S))
        if self.runtime.settings.sys_interval_s:
            # What has been counted since the last interval.
            self._sample()
            self._traffic_sampling.finish()
        hooks = self.runtime.hooks
        try:
            await limited(run(hooks.drained()), clock, STOP_LIMIT_S)
        except TimeLimitExceeded:
            hooks.give_up_notices()
        await self._drain_plugins()
        self.runtime.log_lines.sum_up()
        await _attempted("the cluster backend", lambda: cluster.leave(STOP_LIMIT_S))
        await _attempted("the cluster backend", cluster.stop)
        await self._stop_plugins()

    async def health(self) -> Mapping[str, Health]:
        """Each plugin's health, by name; one that can't tell counts as failed, one that hangs as degraded."""
        found: dict[str, Health] = {}
        for call in self.runtime.hooks.health.each():
            try:
                found[call.plugin] = await settle(call())
            except Exception as error:
                call.failed(error)
                found[call.plugin] = Health(HealthState.FAILED, f"{type(error).__name__}: {error}")
        for plugin, overdue in self.runtime.hooks.overdue_notices().items():
            found[plugin] = degraded(found.get(plugin), overdue)
        return found

    # For listeners

    def accept(self, link: Link) -> Connection:
        """A listener has a new connection."""
        connection = Connection(self.services, HANDLERS, link)
        connection.opened()
        return connection

    # For plugins

    def publish(self, message: Message) -> None:
        """Publish a message of the broker's own."""
        routed = self.publishing.publish(message)
        if isinstance(routed, Awaitable):
            as_deferred(routed).addErrback(
                lambda failure: log.failure("{topic!r} was not published", failure, topic=message.topic)
            )

    def publish_until_kept(
        self,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
        client: Client | None = None,
    ) -> None:
        """The same, in one transaction with what ``along`` writes, again and again until that is kept.

        ``pending`` asks whether it is still to be done, where a store that failed late may have done it. Where it is
        a ``client`` that has left the message it is asked whether that one may publish it now.
        """
        check_message(message)
        run(self._publish_restored(message, along, pending, client)).addErrback(
            lambda failure: log.failure("{topic!r} was not published", failure, topic=message.topic)
        )

    def keep_value(self, plugin: str, key: str, value: bytes | None) -> None:
        """Keep a plugin's value, or forget it, with this turn's writes."""
        self.retained.keep_value(plugin, key, value)

    def has_value(self, plugin: str, key: str) -> Deferred[bool]:
        """Whether a plugin's value is kept."""
        return run(self.retained.has_value(plugin, key))

    def kept_values(self, plugin: str) -> Deferred[Mapping[str, bytes]]:
        """All that a plugin keeps, by key."""
        return run(self.retained.kept_values(plugin))

    def when_committed(self, done: Callable[[], object] | None, failed: Callable[[], object]) -> None:
        """Have a call made when this turn's writes are committed, or the other where they are not."""
        batch = self.runtime.turn.batch
        if done is not None:
            batch.afterwards.append(done)
        batch.otherwise.append(lambda reason: failed())

    def deliver(self, client_id: str, message: Message) -> DeliveryResult:
        """Bring a message to one session, whatever it has subscribed to."""
        session = self.sessions.get(client_id)
        if session is None:
            return DeliveryResult.NO_SESSION
        taken = self.publishing.deliver(session, message)
        return DeliveryResult.TAKEN if taken else DeliveryResult.REFUSED

    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """Ask whether a client may do something."""
        ruling = self.runtime.rights.ask(request)
        if isinstance(ruling, Awaitable):
            return as_deferred(ruling).addCallback(lambda ruling: ruling.decision)
        return ruling.decision

    def client(self, client_id: str) -> Client | None:
        """The connected client of that id."""
        session = self.sessions.get(client_id)
        return None if session is None or session.connection is None else session.client

    def disconnect(self, client_id: str, reason: ReasonCode, text: str) -> bool:
        """Close a client's connection."""
        session = self.sessions.get(client_id)
        if session is None or session.connection is None:
            return False
        session.connection.fail(reason, text)
        return True

    def authorization_changed(self, scope: Scope) -> None:
        """Forget the answers that authorizers gave within a scope."""
        for connection in self.connections:
            connection.authorization_changed(scope)
        for session in self.sessions.by_id.values():
            # Those whose clients are away have rights, too: what comes for them is queued.
            if session.receive_rights is not None and scope.covers(session.client):
                session.receive_rights = None
        self.router.invalidate()

    # Within

    async def _publish_restored(
        self,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
        client: Client | None,
    ) -> None:
        if not self._restored:
            # Those whom it is for are not all there yet, nor those who say whether it may be.
            there: Deferred[None] = Deferred()
            self._awaits_restored.append(there)
            await there
        if client is None:
            await self.publishing.publish_until_kept(message, along, pending)
        else:
            await self.due.publish(client, message, along, pending)

    def _level_changed(self) -> None:
        """Memory is at another level: what the router and the sessions remember of the one before holds no more."""
        self.runtime.refuses = self.overload.refuses
        self.router.invalidate()

    async def _sweep(self, now: float) -> None:
        """Drop fan-outs that nobody wants any more."""
        self.fanouts.sweep()

    async def _retry(self, now: float) -> None:
        """Hand over again what a store could not keep."""
        self.runtime.turn.retry()

    def _taken(self, client_id: str, epoch: int) -> None:
        """The session store has noticed that another node has claimed what was held here."""
        self.sessions.fenced(client_id, epoch)
        self.runtime.turn.touch()

    def _epoch_of(self, client_id: str) -> int:
        session = self.sessions.get(client_id)
        return 0 if session is None else session.epoch

    def _session_of(self, client_id: str) -> Any:
        return self.sessions.by_id.get(client_id)

    def _serves(self, call: Call) -> bool:
        """Whether a plugin provides a service: it is started before those that may use it, and stopped behind."""
        return call.plugin in self.assembly.providers.values()

    def _backwards(self, calls: Sequence[Call]) -> list[Call]:
        """The calls in the reverse of the order of starting."""
        others = [call for call in calls if not self._serves(call)]
        return [*reversed(others), *reversed([call for call in calls if self._serves(call)])]

    async def _start_plugins(self) -> None:
        for call in sorted(self.runtime.hooks.start.each(), key=lambda call: not self._serves(call)):
            context = self.assembly.contexts[call.plugin]
            self._started.append(context)
            try:
                await settle(call(context))
            except Exception as error:
                what = str(error) if isinstance(error, SpiError) else f"{type(error).__name__}: {error}"
                raise AssemblyError(f"plugin {call.plugin!r} can't start: {what}") from error

    async def _drain_plugins(self) -> None:
        """All at once, each until the deadline."""
        clock = self.runtime.clock
        draining: list[tuple[Call, Deferred[None]]] = []
        for call in self.runtime.hooks.drain.each():
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
        """In the reverse of the order of starting; only those whose ``start`` was called, or that have none."""
        started = {context.name for context in self._started}
        starting = {call.plugin for call in self.runtime.hooks.start.each()}
        for call in self._backwards(self.runtime.hooks.stop.each()):
            if call.plugin in starting and call.plugin not in started:
                continue
            try:
                await settle(call())
            except Exception as error:
                call.failed(error)

    def _publish_sys(self, publisher: SysPublisher) -> None:
        self.runtime.count_discarded()
        publisher.publish()

    def _sample(self) -> None:
        """Tell of all that is counted, as of one moment: two would come to lie in two windows of time."""
        now = self.runtime.clock.now()
        self.runtime.count_discarded()
        if self.runtime.hooks.sampled.active:
            self.runtime.hooks.sampled(self.assembly.metrics.snapshot(now, self.runtime.node.name))
        if self.runtime.hooks.traffic_sampled.active:
            self._traffic_sampling.begin(now, self.connections)

    def _tell_traffic(self, at: float) -> None:
        self.runtime.hooks.traffic_sampled(self.traffic.taken(at, self.runtime.node.name))

    def _make_gauges(self) -> None:
        metrics = self.assembly.metrics
        stores = self.runtime.stores
        metrics.gauge("clients.connected", "clients", lambda: self.sessions.connected)
        metrics.gauge("overload.level", "level", lambda: self.overload.level)
        metrics.gauge("buffers.inbound", "bytes", lambda: self.buffers.inbound)
        metrics.gauge("buffers.outbound", "bytes", lambda: self.buffers.outbound)
        metrics.gauge("buffers.inflight", "bytes", lambda: self.buffers.inflight)
        metrics.gauge("buffers.waiting", "connections", lambda: len(self.buffers.waiting))
        metrics.gauge("connections.open", "connections", lambda: len(self.connections))
        for listener in self.listeners.values():
            metrics.gauge(
                "listeners.connections",
                "connections",
                partial(getattr, listener, "connections"),
                {"listener": listener.name},
            )
        metrics.gauge("clients.total", "clients", lambda: len(self.sessions.by_id))
        metrics.gauge("subscriptions.count", "subscriptions", self.router.index.count)
        everybody = self.runtime.accounts.all
        metrics.gauge("subscriptions.size", "bytes", lambda: everybody.subscription_bytes)
        metrics.gauge("wills.size", "bytes", lambda: everybody.will_bytes)
        metrics.gauge("retained.count", "messages", stores.retain.count)
        metrics.gauge("retained.size", "bytes", stores.retain.size_bytes)
        metrics.gauge("queued.count", "messages", lambda: self.runtime.waiting.messages)
        metrics.gauge("queued.size", "bytes", lambda: self.runtime.waiting.size_bytes)
        metrics.gauge("sessions.stored", "sessions", stores.session.count)
        metrics.gauge(
            "inflight.count", "messages", lambda: sum(len(s.outgoing) for s in self.sessions.by_id.values())
        )


def degraded(health: Health | None, why: str) -> Health:
    """A plugin's health, and why it is not as good as it may say."""
    if health is None:
        return Health(HealthState.DEGRADED, why)
    state = HealthState.DEGRADED if health.state is HealthState.HEALTHY else health.state
    return Health(state, f"{why}; {health.text}" if health.text else why)


async def _attempted(what: str, work: Callable[[], Maybe[None]]) -> None:
    """A step of stopping: whatever it raises, the stop goes on."""
    try:
        await settle(work())
    except Exception:
        log.failure("{what} could not be brought to an end", what=what)


async def _all_of(commits: list[Deferred[None]]) -> None:
    """Wait for all of them; raises what the first that fails raises."""
    outcomes: list[tuple[bool, Any]] = await DeferredList(commits, consumeErrors=True)
    for was_kept, outcome in outcomes:
        if not was_kept:
            outcome.raiseException()


class _ClusterNews:
    """What the broker does with news from its cluster backend."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def forwarded(self, origin: NodeIdentity, messages: Sequence[Message]) -> Commit:
        """Route another node's messages to this node's subscribers."""
        router, turn = self._broker.router, self._broker.runtime.turn
        commits = []
        for message in messages:
            publication = Publication.of(message)
            route = partial(router.route, publication, after_commit=True)
            if router.must_wait(message.topic):
                commits.append(run(self._when_kept(router.when_free(publication, route))))
            else:
                route()
        commits.append(turn.committed())
        return run(_all_of(commits))

    async def _when_kept(self, routed: Awaitable[Routed]) -> None:
        """Wait until a message is delivered that had to wait for others of its topic, and is kept."""
        await as_deferred(routed)
        await self._broker.runtime.turn.committed()

    def routes_changed(
        self, node: NodeIdentity, version: int, added: Sequence[RouteChange], removed: Sequence[RouteChange]
    ) -> None:
        """Another node's interests; with a backend of one node there are none to keep."""
        log.debug("routes of {node} are at version {version}", node=node.name, version=version)

    def member_changed(self, member: Member) -> None:
        """Tell the plugins."""
        if self._broker.runtime.hooks.cluster_member.active:
            self._broker.runtime.hooks.cluster_member(member)

    def session_claimed(self, client_id: str, epoch: int, owner: NodeIdentity) -> None:
        """Another node owns the session now; late news of an owner before us means nothing."""
        session = self._broker.sessions.get(client_id)
        if session is not None and session.epoch < epoch:
            self._broker.sessions.fenced(client_id, session.epoch)
