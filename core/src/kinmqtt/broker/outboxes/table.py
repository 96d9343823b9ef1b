"""The table of a broker's outboxes: opens their sessions, and gives them those that other nodes have left."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from twisted.logger import Logger

from kinmqtt.broker.bridging import PARKED_SUFFIX
from kinmqtt.broker.outboxes.outbox import PluginOutbox
from kinmqtt.broker.session.outbox_session import PREFIX
from kinmqtt.broker.session.queue import RETRY_S
from kinmqtt.hooks.awaitables import pause, run
from kinmqtt_spi.metrics import PLUGIN
from kinmqtt_spi.services.outbox import Accepted, Outbox, OutboxSettings
from kinmqtt_spi.settings import problem_with

if TYPE_CHECKING:
    from kinmqtt.broker.services import Services
    from kinmqtt.broker.session.outbox_session import OutboxSession
    from kinmqtt_spi.metrics import MetricRegistry
    from kinmqtt_spi.services.metric import Counter
    from kinmqtt_spi.values import Message

log = Logger("kinmqtt.outboxes")

NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}(\.parked)?")
"""The names of outboxes: they are part of client ids in the stores. Those of sinks' parked messages are longer."""


def client_id_of(node: str, plugin: str, name: str) -> str:
    """Return the client id of an outbox's session."""
    return f"{PREFIX}{node}/{plugin}/{name}"


def owner_of(client_id: str) -> tuple[str, str, str] | None:
    """Return node, plugin and name of an outbox; ``None`` if a client id with :data:`PREFIX` does not name them."""
    parts = client_id.removeprefix(PREFIX).rsplit("/", 2)
    return (parts[0], parts[1], parts[2]) if len(parts) == 3 else None


class Outboxes:
    """The outboxes that plugins have declared, by plugin and name."""

    def __init__(self, services: Services, metrics: MetricRegistry) -> None:
        self._services = services
        self._node = services.runtime.node.name
        self._metrics = metrics
        self._declared: dict[tuple[str, str], PluginOutbox] = {}
        self._is_open = False
        services.sessions.outboxes.when_added(self._added)

    def declare_own(self, plugin: str, name: str, settings: OutboxSettings, filters: Sequence[str]) -> Outbox:
        """Make an outbox that a plugin asks for, see :meth:`declare`; not one of a sink's parked messages."""
        given: Any = name
        if isinstance(given, str) and given.endswith(PARKED_SUFFIX):
            raise ValueError(f"{name!r}: outboxes whose names end with {PARKED_SUFFIX} are those of sinks")
        return self.declare(plugin, name, settings, filters)

    def declare(self, plugin: str, name: str, settings: OutboxSettings, filters: Sequence[str]) -> Outbox:
        """Make an outbox. It opens when the sessions are restored, before any client is served.

        Raises ``ValueError`` for an invalid name, setting or filter, and where the plugin has an outbox of that name.
        """
        key = (plugin, name)
        given: Any = name
        if not isinstance(given, str) or not NAME.fullmatch(given):
            raise ValueError(
                f"{str(given)[:100]!r}: an outbox's name has 1 to 64 of the characters a-z, A-Z, 0-9, -, _ and ."
            )
        problem = problem_with(settings)
        if problem is not None:
            raise ValueError(f"outbox {name!r}: {problem}")
        if key in self._declared:
            raise ValueError(f"plugin {plugin} has an outbox {name!r} already")
        outbox = PluginOutbox(
            self._services,
            plugin,
            name,
            client_id_of(self._node, plugin, name),
            settings,
            filters,
            partial(self._dropped, plugin, name),
            partial(self._declared.pop, key, None),
            partial(self._lost, key),
        )
        self._declared[key] = outbox
        self._measure(plugin, name, outbox)
        if self._is_open:
            self._open_later(outbox)
        return outbox

    def put(self, outbox: Outbox, message: Message, by: str) -> Accepted:
        """Put a message of a plugin (``by``) into an outbox, which may be another plugin's."""
        return outbox.put_by(by, message) if isinstance(outbox, PluginOutbox) else outbox.put(message)

    def _open_later(self, outbox: PluginOutbox) -> None:
        run(self._open_until_done(outbox)).addErrback(
            lambda failure: log.failure("outbox {name!r} could not be opened", failure, name=outbox.name)
        )

    def _lost(self, key: tuple[str, str]) -> None:
        """Refuse messages for an outbox that another node has claimed, and claim it again: this node is alive."""
        outbox = self._declared[key]
        outbox.refuse_by(self._services.sessions.outboxes.stand_in(outbox.client_id))
        text = "outbox {name!r} was claimed by another node: its messages are refused until it is here again"
        log.error(text, name=outbox.name)
        self._services.runtime.clock.later(RETRY_S, partial(self._open_later, outbox))

    async def open(self) -> None:
        """Open all that are declared so far, with what other nodes have left for them."""
        self._is_open = True
        for outbox in list(self._declared.values()):
            await self._open_until_done(outbox)
        for session in self._services.sessions.outboxes.all:
            if not self._added(session):
                log.warn(
                    "outbox {client_id!r} has {count} messages, and no plugin consumes it; they are kept",
                    client_id=session.client_id,
                    count=session.queue.count + len(session.outgoing),
                )

    async def _open_until_done(self, outbox: PluginOutbox) -> None:
        problem = ""
        while outbox.is_wanted() or not outbox.is_opened:
            try:
                session = await self._services.sessions.outboxes.open(outbox.client_id)
                if not outbox.is_wanted():
                    await outbox.delete_unopened(session)
                    return
                outbox.bind(session)
                break
            except Exception as error:
                if str(error) != problem:
                    problem = str(error)
                    log.error("outbox {name!r} can't be opened yet: {error}", name=outbox.name, error=problem)
            await pause(self._services.runtime.clock, RETRY_S)
        for left in self._services.sessions.outboxes.all:
            self._added(left)

    def _added(self, session: OutboxSession) -> bool:
        """Give an outbox that was restored or adopted to whom it belongs; ``False`` if nobody here consumes it."""
        owner = owner_of(session.client_id)
        outbox = None if owner is None else self._declared.get(owner[1:])
        if owner is None or outbox is None:
            return False
        if outbox.is_wanted() and (owner[0] == self._node or self._is_open):
            outbox.bind(session)
        return True

    # Metrics

    def _dropped(self, plugin: str, name: str, why: str) -> Counter:
        return self._metrics.counter("outbox.dropped", "messages", {PLUGIN: plugin, "name": name, "why": why})

    def _measure(self, plugin: str, name: str, outbox: PluginOutbox) -> None:
        labels = {PLUGIN: plugin, "name": name}
        now = self._services.runtime.clock.now

        def oldest_s() -> float:
            at = outbox.figures().oldest_at
            return 0.0 if at is None else max(0.0, now() - at)

        gauge = self._metrics.gauge
        gauge("outbox.queued", "messages", lambda: outbox.figures().queued, labels)
        gauge("outbox.size", "bytes", lambda: outbox.figures().queued_bytes, labels)
        gauge("outbox.inflight", "messages", lambda: outbox.figures().inflight, labels)
        gauge("outbox.oldest", "seconds", oldest_s, labels)
        gauge("outbox.paused", "messages", lambda: outbox.paused, labels)
