"""The composition root: creates every part of the broker and connects them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from random import Random
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.assembly import Assembly
from kinmqtt.broker.bridging import BridgeParts, Bridging
from kinmqtt.broker.buffers import Buffers
from kinmqtt.broker.cluster.calls import Calls
from kinmqtt.broker.cluster.figures import NodeFigures
from kinmqtt.broker.cluster.listener import Nodes
from kinmqtt.broker.connection.connection import Connection
from kinmqtt.broker.connection.link import Link
from kinmqtt.broker.connection.listener import Listener
from kinmqtt.broker.forwarding.announcer import Announcer
from kinmqtt.broker.forwarding.forwarder import Forwarder
from kinmqtt.broker.gauges import register_gauges
from kinmqtt.broker.handlers.table import HANDLERS
from kinmqtt.broker.housekeeping import Chore, Housekeeping
from kinmqtt.broker.keepalive import TimerWheel
from kinmqtt.broker.lifecycle import Lifecycle
from kinmqtt.broker.limiting import Limiting
from kinmqtt.broker.outboxes.table import Outboxes
from kinmqtt.broker.overload import Overload
from kinmqtt.broker.ownership.sessions import Sessions
from kinmqtt.broker.retained_sync.sync import RetainedSync
from kinmqtt.broker.rights import Rights
from kinmqtt.broker.routing.acknowledged import publish_acknowledged
from kinmqtt.broker.routing.due import DuePublisher
from kinmqtt.broker.routing.plugin_tap import PluginTap
from kinmqtt.broker.routing.publisher import MessagePublisher
from kinmqtt.broker.routing.resender import Resender
from kinmqtt.broker.routing.retained import Retained
from kinmqtt.broker.routing.router import Router
from kinmqtt.broker.routing.traffic import TrafficLedger
from kinmqtt.broker.runtime import Runtime
from kinmqtt.broker.sampling import Sampler
from kinmqtt.broker.services import Services
from kinmqtt.broker.trimming import Trimming
from kinmqtt.broker.turn.ports import Peer
from kinmqtt.broker.turn.slices import Slices
from kinmqtt.broker.turn.turn import Turn
from kinmqtt.hooks.awaitables import as_deferred, run
from kinmqtt.hooks.messages import check_filter, check_message
from kinmqtt.settings import LimitSettings
from kinmqtt_spi.reasons import ReasonCode
from kinmqtt_spi.services.authorization import AuthorizationRequest, Scope
from kinmqtt_spi.services.outbox import Accepted, Outbox, OutboxSettings
from kinmqtt_spi.services.plugin import DeliveryResult, Health
from kinmqtt_spi.services.retain import RetainPage
from kinmqtt_spi.services.tap import PayloadTest, Tap, TapHandler
from kinmqtt_spi.values import Client, Decision, Maybe, Message

log = Logger("kinmqtt.broker")

CallSoon = Callable[[Callable[[], object]], object]
"""Makes a call in the next reactor turn."""


class Broker:
    """A broker, assembled and ready to start. Listeners pass it connections; it opens none itself."""

    def __init__(
        self, assembly: Assembly, call_soon: CallSoon, random_hex: Callable[[int], str], version: str
    ) -> None:
        """``random_hex`` returns that many random bytes in hexadecimal; ``version`` appears in ``$SYS``.

        Raises :class:`~kinmqtt_spi.errors.AssemblyError` for sinks and sources that plugins can't make.
        """
        hooks = assembly.hooks
        hooks.limit_notices(assembly.limits.notice_time_limit_s)
        self.assembly = assembly
        self.events = assembly.feed
        self.connections: set[Peer] = set()
        self.buffers = Buffers(assembly.limits, self.connections, call_soon, assembly.statistics.connections_cut)
        self.runtime = _runtime(assembly, self.buffers, call_soon, random_hex)
        self.listeners = _listeners(assembly)
        self.wheel = TimerWheel()
        self.limiting = Limiting(hooks, assembly.limiter_needs, assembly.metrics)
        self.forwarder = Forwarder(self.runtime, assembly.cluster)
        announcer = Announcer(assembly.cluster, call_soon, assembly.statistics.unsynchronised)
        self.router = Router(self.runtime, assembly.index, self.forwarder, announcer, self._session_of)
        self.fanouts = self.router.fanouts
        self.traffic = TrafficLedger(bool(hooks.traffic_sampled.active and assembly.settings.sys_interval_s))
        self.retained = Retained(self.runtime, self._epoch_of)
        resender = Resender(self.runtime, self.router, self.forwarder, self._session_of)
        self.publisher = MessagePublisher(self.runtime, self.router, self.retained, resender)
        self.due_publisher = DuePublisher(self.runtime, self.publisher, self._session_of)
        self.sessions = Sessions(self.runtime, self.router, self.publisher, self.due_publisher, assembly.cluster)
        self._observe_commits()
        self.overload = self._make_overload(call_soon)
        self.housekeeping = Housekeeping(assembly.clock, self.runtime.slices, self.wheel, self._chores())
        self.services = Services(
            self.runtime,
            self.connections,
            self.wheel,
            self.limiting,
            self.overload,
            self.forwarder,
            self.router,
            self.publisher,
            resender,
            self.retained,
            self.sessions,
            self.traffic,
        )
        self.outboxes = Outboxes(self.services, assembly.metrics)
        self.calls = Calls(self.runtime, self.forwarder, self.sessions, self.publisher)
        figures = NodeFigures(self.services, self.publish)
        retained_sync = RetainedSync(self.runtime, self.retained, assembly.cluster)
        nodes = Nodes(self.services, self.calls, figures, assembly.arbiter, retained_sync)
        self.when_expelled = nodes.when_expelled
        self.sampler = Sampler(self.services, assembly.metrics, call_soon)
        self.bridging = Bridging(
            BridgeParts(
                hooks,
                assembly.contexts,
                Random(random_hex(16)),
                self.outboxes.declare,
                self.publish_acknowledged,
                self.when_committed,
            )
        )
        self.lifecycle = Lifecycle(
            assembly,
            self.services,
            self.listeners,
            self.housekeeping,
            self.sampler,
            nodes,
            figures,
            self.outboxes,
            self.bridging,
            self.publish,
            version,
        )
        for context in assembly.contexts.values():
            context.attach(self)
        self.bridging.assemble()
        register_gauges(assembly.metrics, self.services, self.listeners.values(), nodes)

    def _observe_commits(self) -> None:
        """Measure commits, and notify sessions of failed commits and lost ownership."""
        turn, clock = self.runtime.turn, self.assembly.clock
        turn.measure(clock.monotonic, self.assembly.statistics.commits.observe)
        turn.recovery.when_fenced(self.sessions.fenced)
        self.assembly.stores.session.on_taken_over(self._taken)
        turn.recovery.when_commit_failed(self.sessions.on_commit_failed, self.sessions.unopened)

    def _make_overload(self, call_soon: CallSoon) -> Overload:
        assembly = self.assembly
        return Overload(
            lambda: self.runtime.limits,
            assembly.memory_bytes,
            self._level_changed,
            self.buffers,
            assembly.statistics.bytes_received,
            assembly.trim,
            call_soon,
            assembly.clock.later,
        )

    def _chores(self) -> dict[str, Chore]:
        """Returns what housekeeping does each second, by name."""
        assembly = self.assembly
        trimming = Trimming(self.buffers, self.runtime.queued, self.overload, assembly.clock.monotonic, assembly.trim)
        return {
            "sessions": self.sessions.expire,
            "left behind": self._adopt,
            "queues": self.sessions.expire_messages,
            "retained": self.retained.expire,
            "overload": self.overload.look,
            "buffers": self.buffers.look,
            "trimming": trimming.look,
            "fan-outs": self._sweep,
            "stores": self._retry,
        }

    # Life

    async def start(self) -> None:
        """Start plugins and services, and restore the state of the stores; listeners open afterwards.

        Raises :class:`AssemblyError` that names the plugin which could not start; all that was started is stopped.
        """
        await self.lifecycle.start()

    async def ready(self) -> None:
        """Notify plugins that the listeners are open."""
        await self.runtime.hooks.ready()

    async def reload(
        self, settings_of: Callable[[str, type[Any] | None], Any], limits: LimitSettings | None = None
    ) -> list[str]:
        """Reload every plugin with its section of new settings; returns a line for each setting left unchanged.

        New ``limits`` apply to later connections, and to queues at once. ``settings_of`` parses a plugin's section
        into its settings class. Raises :class:`~kinmqtt_spi.errors.SettingsError` for invalid sections: then nothing
        was changed.
        """
        return await self.lifecycle.reload(settings_of, limits)

    async def stop(self) -> None:
        """Disconnect the clients, drain, and stop everything; the listeners are closed before."""
        await self.lifecycle.stop()

    async def health(self) -> Mapping[str, Health]:
        """Returns each plugin's health, by name; one that raises counts as failed, one that hangs as degraded."""
        return await self.lifecycle.health()

    # For listeners

    def accept(self, link: Link) -> Connection:
        """Returns the connection for a new link of a listener."""
        connection = Connection(self.services, HANDLERS, link)
        connection.opened()
        return connection

    # For plugins

    def publish(self, message: Message, by: str = "") -> None:
        """Publish a message of a plugin (``by``), or of the broker's own."""
        routed = self.publisher.publish(message, by)
        if isinstance(routed, Awaitable):
            as_deferred(routed).addErrback(
                lambda failure: log.failure("{topic!r} was not published", failure, topic=message.topic)
            )

    def publish_until_committed(
        self,
        message: Message,
        along: Callable[[], None],
        pending: Callable[[], Awaitable[bool]] | None,
        client: Client | None = None,
        by: str = "",
    ) -> None:
        """Publish in one transaction with the writes of ``along``; retry until it is committed.

        ``pending`` returns whether it is still to be done: a store that failed late may have committed it. With a
        ``client``, the publisher, authorizers are asked whether that client may publish the message now.
        """
        self.router.taps.refuse_within(by, "publish with in_place_of or on_behalf_of")
        check_message(message)
        run(self._publish_restored(message, along, pending, client)).addErrback(
            lambda failure: log.failure("{topic!r} was not published", failure, topic=message.topic)
        )

    def persist_value(self, plugin: str, key: str, value: bytes | None) -> None:
        """Persist a plugin's value, or remove it, with this turn's writes."""
        self.retained.persist_value(plugin, key, value)

    def has_value(self, plugin: str, key: str) -> Deferred[bool]:
        """Whether a plugin's value is persisted."""
        return run(self.retained.has_value(plugin, key))

    def persisted_values(self, plugin: str) -> Deferred[Mapping[str, bytes]]:
        """Returns all persisted values of a plugin, by key."""
        return run(self.retained.persisted_values(plugin))

    def when_committed(
        self,
        done: Callable[[], object] | None,
        failed: Callable[[], object],
        fenced: tuple[str, Callable[[], object]] | None = None,
    ) -> None:
        """Call ``done`` when this turn's writes are committed, or ``failed`` if they are not.

        ``fenced``: a client id, and what is called in the place of ``done`` if that client's session has moved.
        """
        batch = self.runtime.turn.batch

        def committed() -> None:
            if fenced is not None and fenced[0] in batch.fenced:
                fenced[1]()
            elif done is not None:
                done()

        batch.after_commit.append(committed)
        batch.on_commit_failed.append(lambda reason: failed())

    def deliver(self, client_id: str, message: Message, by: str = "") -> Maybe[DeliveryResult]:
        """Deliver a message of a plugin to one session, whatever its subscriptions.

        In the call of that plugin's tap, the publisher of the message that the tap sees waits for it.
        """
        tapped = self.router.taps.seen_by(by)
        if tapped is None:
            return self.calls.deliver(client_id, message)
        return self.calls.deliver(client_id, self.publisher.renewed(message), tapped.ticket)

    def retained_page(self, filter: str, cursor: object) -> Maybe[RetainPage]:
        """Return a page of the retained messages that match a filter, for a plugin."""
        check_filter(filter)
        return self.retained.page(filter, cursor)

    def publish_acknowledged(self, messages: Sequence[Message], by: str = "") -> Deferred[None]:
        """Publish as a client that waits for PUBACK."""
        self.router.taps.refuse_within(by, "publish_acknowledged")
        return run(self._publish_acknowledged(messages))

    def outbox(self, plugin: str, name: str, settings: OutboxSettings, filters: Sequence[str]) -> Outbox:
        """Returns a new outbox of a plugin."""
        return self.outboxes.declare_own(plugin, name, settings, filters)

    def tap(self, plugin: str, filters: Sequence[str], handler: TapHandler, wants: PayloadTest | None) -> Tap:
        """Open a tap of a plugin."""
        return PluginTap(self.runtime, self.router, plugin, filters, handler, wants)

    def put(self, sink: str, message: Message, by: str = "") -> Accepted:
        """Put a message of a plugin (``by``) into the outbox of a sink, named `plugin:name`."""
        return self.outboxes.put(self.bridging.outbox_of(sink), message, by)

    def sink_names(self) -> Sequence[str]:
        """Return the names of all sinks."""
        return self.bridging.names

    def authorize(self, request: AuthorizationRequest) -> Maybe[Decision]:
        """Ask whether a client may do something."""
        ruling = self.runtime.rights.ask(request)
        if isinstance(ruling, Awaitable):
            return as_deferred(ruling).addCallback(lambda ruling: ruling.decision)
        return ruling.decision

    def client(self, client_id: str) -> Client | None:
        """Returns the connected client of an id; ``None`` if there is none."""
        session = self.sessions.get(client_id)
        return None if session is None or session.connection is None else session.client

    def disconnect(self, client_id: str, reason: ReasonCode, text: str) -> Maybe[bool]:
        """Close a client's connection; returns ``False`` if it has none."""
        return self.calls.disconnect(client_id, reason, text)

    def tell_others(self, plugin: str, data: bytes) -> None:
        """Tell a plugin's instances on the other nodes something."""
        self.calls.tell_others(plugin, data)

    def authorization_changed(self, scope: Scope) -> None:
        """Drop cached authorizer answers within a scope."""
        for connection in self.connections:
            connection.authorization_changed(scope)
        for session in self.sessions.by_id.values():
            # Sessions of disconnected clients have receive rights too: messages for them are queued.
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
        if not self.lifecycle.is_restored:
            # Before that, subscribers and authorizers may be missing.
            await self.lifecycle.restored()
        if client is None:
            await self.publisher.publish_until_committed(message, along, pending)
        else:
            await self.due_publisher.publish(client, message, along, pending)

    async def _publish_acknowledged(self, messages: Sequence[Message]) -> None:
        if not self.lifecycle.is_restored:
            await self.lifecycle.restored()
        await publish_acknowledged(self.runtime, self.publisher, messages)

    def _level_changed(self) -> None:
        """Apply a new memory level, which invalidates the caches of router and sessions."""
        self.runtime.refuses = self.overload.refuses
        self.router.invalidate()

    async def _sweep(self, now: float) -> None:
        """Drop fan-outs without subscribers."""
        self.fanouts.sweep()

    async def _adopt(self, now: float) -> None:
        """Adopt sessions of nodes that are gone."""
        await self.sessions.adopt_orphaned(now)

    async def _retry(self, now: float) -> None:
        """Retry writes that a store could not commit."""
        self.runtime.turn.retry()

    def _taken(self, client_id: str, epoch: int) -> None:
        """End a session that another node has claimed, as the session store found."""
        self.sessions.fenced(client_id, epoch)
        self.runtime.turn.touch()

    def _epoch_of(self, client_id: str) -> int:
        session = self.sessions.get(client_id)
        return 0 if session is None else session.epoch

    def _session_of(self, client_id: str) -> Any:
        return self.sessions.by_id.get(client_id)


def _runtime(assembly: Assembly, buffers: Buffers, call_soon: CallSoon, random_hex: Callable[[int], str]) -> Runtime:
    slices = Slices(call_soon, assembly.clock.monotonic)
    return Runtime(
        assembly.settings,
        assembly.limits,
        assembly.node,
        assembly.clock,
        assembly.hooks,
        assembly.statistics,
        assembly.stores,
        Turn(assembly.stores, call_soon, slices),
        buffers,
        slices,
        random_hex,
        Rights(assembly.hooks, assembly.spaces, assembly.denials),
    )


def _listeners(assembly: Assembly) -> dict[str, Listener]:
    """Returns the listeners by name; one without authenticators of its own uses the default ones."""
    return {
        plan.name: Listener(
            plan,
            assembly.limits,
            assembly.hooks,
            plan.settings.authenticators or assembly.default_authenticators,
        )
        for plan in assembly.listeners
    }
