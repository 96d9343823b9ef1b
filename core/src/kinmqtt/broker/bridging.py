"""Runs the sinks and sources of all plugins: at assembly, at the start, at a reload and at the stop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any, Final, TypeAlias, TypeVar

from attrs import frozen
from twisted.internet.defer import Deferred
from twisted.logger import Logger

from kinmqtt.broker.bridge_health import BridgedSink, health_of, lower, queued_text, state_text
from kinmqtt.hooks.awaitables import as_deferred, limited
from kinmqtt.hooks.calls import FAILURES, Call
from kinmqtt.hooks.registry import Hooks
from kinmqtt_spi.bridging.environment import Environment
from kinmqtt_spi.bridging.failures import message_of
from kinmqtt_spi.bridging.parking import AfterCommit, Parking
from kinmqtt_spi.bridging.runner import SinkRunner
from kinmqtt_spi.bridging.sources import SourceRunner
from kinmqtt_spi.errors import AssemblyError
from kinmqtt_spi.services.bridge import PARKED_MESSAGES, Publish, SinkPlan, Source
from kinmqtt_spi.services.metric import SysTopic
from kinmqtt_spi.services.outbox import AtMostOnce, Outbox, OutboxSettings, WhenFull
from kinmqtt_spi.services.plugin import Context, Health, HealthState
from kinmqtt_spi.settings import TABLE_NAME
from kinmqtt_spi.values import Message

log = Logger("kinmqtt.bridge")

T = TypeVar("T")

PARKED: Final = OutboxSettings(max_messages=PARKED_MESSAGES, when_full=WhenFull.DROP_OLDEST, qos_0=AtMostOnce.STORE)
"""The outbox of a sink's poison messages."""

PARKED_SUFFIX: Final = ".parked"
"""What follows a sink's name in the name of that outbox."""

CHECK_LIMIT_S: Final = 5.0
"""How long a sink may take to say how its target is, in seconds."""

OpenOutbox: TypeAlias = Callable[[str, str, OutboxSettings, Sequence[str]], Outbox]
"""``open_outbox(plugin, name, settings, filters)`` opens the outbox of a plugin's sink.

It raises ``ValueError`` or :class:`~kinmqtt_spi.errors.SubscriptionRefused` for its filters.
"""


@frozen(slots=True)
class BridgeParts:
    """What the bridges need of the broker."""

    hooks: Hooks
    contexts: Mapping[str, Context]
    """By plugin."""
    random: Random
    """Decides the jitter of pauses."""
    open_outbox: OpenOutbox
    publish: Publish
    """Publishes the messages of sources; its awaitables are Deferreds or Twisted's coroutines."""
    after_commit: AfterCommit


class Bridging:
    """All sinks and sources of a broker.

    Call :meth:`assemble` once, :meth:`start` when the broker is up, :meth:`reload` after the plugins were reloaded,
    and at the stop :meth:`stop_sources` before and :meth:`stop_sinks` after the clients are gone.
    """

    def __init__(self, parts: BridgeParts) -> None:
        self._parts = parts
        self._sinks: dict[tuple[str, str], BridgedSink] = {}
        self._sources: dict[tuple[str, str], SourceRunner] = {}
        self._runs = False

    def assemble(self) -> None:
        """Collect the plugins' sinks and sources and open their outboxes.

        Raises :class:`~kinmqtt_spi.errors.AssemblyError`, which names the plugin and the sink.
        """
        for call in self._parts.hooks.sinks.each():
            for name, plan in self._collected(call, "sink").items():
                self._add_sink(call, name, plan)
        for call in self._parts.hooks.sources.each():
            for name, source in self._collected(call, "source").items():
                self._add_source(call, name, source)

    def start(self) -> None:
        """Start everything."""
        self._runs = True
        for sink in self._sinks.values():
            sink.runner.start()
        for source in self._sources.values():
            source.start()

    async def reload(self, deadline_s: float) -> list[str]:
        """Compare the plugins' sinks and sources with the present ones; return what could not be changed, as lines.

        New ones start, changed ones follow their new plans, and those that are gone stop within ``deadline_s``
        seconds. The outbox of a sink that is gone stays in the stores.
        """
        left: list[str] = []
        calls = [("sink", call) for call in self._parts.hooks.sinks.each()]
        calls += [("source", call) for call in self._parts.hooks.sources.each()]
        for kind, call in calls:
            try:
                found = self._collected(call, kind)
            except AssemblyError as error:
                left.append(f"{call.plugin}: its old {kind}s go on: {error}")
                continue
            change = self._change_sinks if kind == "sink" else self._change_sources
            left += await change(call, found, deadline_s)
        return left

    async def stop_sources(self, deadline_s: float) -> None:
        """Cancel all sources; completes when they have ended, or after ``deadline_s`` seconds."""
        self._runs = False
        await _all(partial(source.stop, deadline_s) for source in self._sources.values())

    async def stop_sinks(self, deadline_s: float) -> None:
        """Stop all sinks: batches under way end within ``deadline_s`` seconds, or stay in their outboxes."""
        self._runs = False
        await _all(partial(sink.runner.stop, deadline_s) for sink in self._sinks.values())

    async def health(self, own: Mapping[str, Health]) -> dict[str, Health]:
        """Return the plugins' health, by name, lowered where their sinks and sources are worse off.

        ``own`` is what the plugins say of themselves.
        """
        found = dict(own)
        for (plugin, name), sink in self._sinks.items():
            if not sink.is_gone:
                for health in (health_of(sink), await self._check(plugin, sink)):
                    lower(found, plugin, f"sink {name}", health)
        for (plugin, name), source in self._sources.items():
            if source.error is not None:
                lower(found, plugin, f"source {name}", Health(HealthState.DEGRADED, source.error))
        return found

    def sys_topics(self) -> list[SysTopic]:
        """Return the topics of the present sinks: `$SYS/bridge/<plugin>/<name>/state` and `queued`."""
        topics: list[SysTopic] = []
        for (plugin, name), sink in self._sinks.items():
            space = f"$SYS/bridge/{plugin}/{name}"
            topics.append(SysTopic(f"{space}/state", partial(state_text, sink), on_change_only=True))
            topics.append(SysTopic(f"{space}/queued", partial(queued_text, sink)))
        return topics

    @property
    def names(self) -> list[str]:
        """The names of all sinks, each `plugin:name`."""
        return [":".join(key) for key, each in self._sinks.items() if not each.is_gone]

    def outbox_of(self, sink: str) -> Outbox:
        """Return the outbox of a sink, named `plugin:name`; raises ``ValueError`` for one that does not exist."""
        plugin, _, name = sink.partition(":")
        found = self._sinks.get((plugin, name))
        if found is None or found.is_gone:
            raise ValueError(f"there is no sink {sink!r}; there are: {', '.join(self.names) or 'none'}")
        return found.runner.outbox

    # Assembly and reload

    def _collected(self, call: Call, kind: str) -> Mapping[str, Any]:
        try:
            found: Mapping[Any, Any] = call(self._parts.contexts[call.plugin]) or {}
        except FAILURES as error:
            call.failed(error)
            raise AssemblyError(f"plugin {call.plugin!r} has no {kind}s: {message_of(error)}") from error
        for name in found:
            if not isinstance(name, str) or not TABLE_NAME.fullmatch(name):
                raise AssemblyError(
                    f"plugin {call.plugin!r}, {kind} {name!r}: a name has 1 to 64 of the characters a-z, 0-9, _ and -"
                )
        return found

    def _add_sink(self, call: Call, name: str, plan: SinkPlan) -> BridgedSink:
        plugin = call.plugin
        try:
            outbox = self._parts.open_outbox(plugin, name, plan.outbox, plan.filters)
            parked = self._open_parked(plugin, name, plan)
        except Exception as error:
            text = f"plugin {plugin!r}, sink {name!r}: its outbox can't be opened: {message_of(error)}"
            raise AssemblyError(text) from error
        shown = f"{plugin}:{name}"
        runner = SinkRunner(
            shown,
            plan,
            outbox,
            self._parking(parked),
            self._environment(call),
            lambda state, why: self._parts.hooks.sink_state(shown, state, why),
            lambda message, why: self._parts.hooks.poisoned(shown, message, why),
        )
        sink = self._sinks[plugin, name] = BridgedSink(runner, plan, parked, _on_asyncio(call))
        return sink

    def _open_parked(self, plugin: str, name: str, plan: SinkPlan) -> Outbox | None:
        if plan.sending.poison != "park":
            return None
        return self._parts.open_outbox(plugin, name + PARKED_SUFFIX, PARKED, ())

    def _parking(self, parked: Outbox | None) -> Parking | None:
        return None if parked is None else Parking(parked, self._parts.after_commit)

    def _add_source(self, call: Call, name: str, source: Source) -> SourceRunner:
        publish = partial(publish_on_asyncio, self._parts.publish) if _on_asyncio(call) else self._parts.publish
        runner = SourceRunner(f"{call.plugin}:{name}", source, publish, self._environment(call))
        self._sources[call.plugin, name] = runner
        return runner

    def _environment(self, call: Call) -> Environment:
        context = self._parts.contexts[call.plugin]
        run = partial(_run, _on_asyncio(call))
        return Environment(context.clock, run, self._parts.random, context.log, context.metrics)

    async def _change_sinks(self, call: Call, plans: Mapping[str, SinkPlan], deadline_s: float) -> list[str]:
        left: list[str] = []
        for name, plan in plans.items():
            try:
                left += self._change_sink(call, name, plan)
            except Exception as error:
                left.append(f"{call.plugin}: sink {name} stays as it is: {message_of(error)}")
        gone = [(name, sink) for (plugin, name), sink in self._sinks.items() if plugin == call.plugin]
        await _all(
            partial(self._retire, call.plugin, name, sink, deadline_s)
            for name, sink in gone
            if name not in plans and not sink.is_gone
        )
        return left

    def _change_sink(self, call: Call, name: str, plan: SinkPlan) -> list[str]:
        sink = self._sinks.get((call.plugin, name))
        if sink is None:
            sink = self._add_sink(call, name, plan)
            if self._runs:
                sink.runner.start()
            return []
        left = []
        if plan.outbox != sink.plan.outbox:
            left.append(f"{call.plugin}: sink {name}: the outbox's settings are used from the next start on")
        if sink.parked is None:
            sink.parked = self._open_parked(call.plugin, name, plan)
        if plan.filters != sink.plan.filters or sink.is_gone:
            sink.runner.outbox.subscribe(plan.filters)  # May raise: nothing has changed until here.
        sink.runner.reload(plan, self._parking(sink.parked))
        sink.plan = plan
        if sink.is_gone:
            sink.is_gone = False
            sink.runner.start()
        return left

    def _retire(self, plugin: str, name: str, sink: BridgedSink, deadline_s: float, done: Callable[[], None]) -> None:
        sink.is_gone = True
        sink.runner.outbox.subscribe(())
        figures = sink.runner.outbox.figures()
        log.warn(
            "plugin {plugin}: sink {name} is gone; {count} messages stay in its outbox",
            plugin=plugin,
            name=name,
            count=figures.queued + figures.inflight,
        )
        sink.runner.stop(deadline_s, done)

    async def _change_sources(self, call: Call, sources: Mapping[str, Source], deadline_s: float) -> list[str]:
        present = {name: source for (plugin, name), source in self._sources.items() if plugin == call.plugin}
        old = [name for name, runner in present.items() if sources.get(name) is not runner.source]
        await _all(partial(present[name].stop, deadline_s) for name in old)
        for name in old:
            del self._sources[call.plugin, name]
        for name, source in sources.items():
            if (call.plugin, name) not in self._sources:
                runner = self._add_source(call, name, source)
                if self._runs:
                    runner.start()
        return []

    async def _check(self, plugin: str, sink: BridgedSink) -> Health:
        try:
            answer: Any = sink.plan.sink.check()
            if isinstance(answer, Awaitable):
                clock = self._parts.contexts[plugin].clock
                answer = await limited(as_deferred(answer, on_asyncio=sink.on_asyncio), clock, CHECK_LIMIT_S)
        except FAILURES as error:
            return Health(HealthState.DEGRADED, f"its check failed: {type(error).__name__}: {message_of(error)}")
        return answer if isinstance(answer, Health) else Health(HealthState.HEALTHY)


def _on_asyncio(call: Call) -> bool:
    return call.implementation.asyncio


def _run(
    on_asyncio: bool, awaitable: Awaitable[Any], done: Callable[[Any], None], failed: Callable[[BaseException], None]
) -> Deferred[None]:
    """Drive an awaitable of a plugin; see :data:`kinmqtt_spi.bridging.calls.Run`."""
    deferred = as_deferred(awaitable, on_asyncio=on_asyncio)
    driven: Deferred[None] = deferred.addCallbacks(done, lambda failure: failed(failure.value))
    driven.addErrback(lambda failure: log.failure("a bridge's callback failed", failure))
    return driven


async def publish_on_asyncio(publish: Publish, messages: Sequence[Message]) -> None:
    """Publish for a source whose coroutines are asyncio's: these can't await Deferreds."""
    await as_deferred(publish(messages)).asFuture(asyncio.get_running_loop())


async def _all(stops: Iterable[Callable[[Callable[[], None]], None]]) -> None:
    """Begin all stops, and wait until each has called what it got."""
    ended: list[Deferred[None]] = []
    for stop in stops:
        end: Deferred[None] = Deferred()
        ended.append(end)
        stop(partial(end.callback, None))
    for end in ended:
        await end
