"""The plugin: implements the hooks, owns the parts and runs their timers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kinmqtt_redis_session.batch_reader import BatchReader
from kinmqtt_redis_session.cluster_arbiter import RedisClusterArbiter
from kinmqtt_redis_session.connection import UNAVAILABLE, Link
from kinmqtt_redis_session.counters import Counters
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.leases import Leases
from kinmqtt_redis_session.queues import RedisQueueStore
from kinmqtt_redis_session.resync import Resync
from kinmqtt_redis_session.retained import RedisRetainStore
from kinmqtt_redis_session.scripts import Command, Execute
from kinmqtt_redis_session.servers import Servers
from kinmqtt_redis_session.sessions import RedisSessionStore
from kinmqtt_redis_session.settings import RedisSessionSettings, validated
from kinmqtt_redis_session.write_pipeline import WritePipeline
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.services.cluster_arbiter import ClusterArbiter
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_WRITES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0)

ATTEMPT_TIMEOUTS: Final = 5
"""An upper bound for a reconnect, in units of ``timeout_s`` and without the pause: to close connections, to make new
ones, and to run the first commands."""

CHECKS_AFTER_LAPSE: Final = 3
"""After an expired lease was renewed: how many more renewals check whether others took over sessions. Takeovers that
were in progress are complete then."""


class RedisSession:
    """Stores sessions, queues and retained messages in Redis."""

    def __init__(self, *, joins: bool = True) -> None:
        """``joins`` says that a broker claims sessions, so that the node needs a lease."""
        self._joins = joins
        self._parts: _Parts | None = None
        self._serves = False
        self._timers: dict[str, Timer] = {}
        self._busy: set[str] = set()
        self._tasks: set[asyncio.Future[Any]] = set()

    # Lifecycle

    @hookimpl
    def requirements(self) -> Requirements:
        """Declare version 2 of the SPI, and the asyncio reactor that the Redis client needs."""
        return Requirements(spi_version=2, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[RedisSessionSettings]:
        """The class that the settings section is parsed into."""
        return RedisSessionSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings. Connections are made at the start."""
        parts = self._parts = _Parts(context, validated(context.settings))
        parts.sessions.spawn = self._spawn

    @hookimpl
    def session_store(self) -> SessionStore:
        """The session store."""
        return self._shared.sessions

    @hookimpl
    def queue_store(self) -> QueueStore:
        """The queue store."""
        return self._shared.queues

    @hookimpl
    def retain_store(self) -> RetainStore:
        """The retain store."""
        return self._shared.retained

    @hookimpl
    def cluster_arbiter(self) -> ClusterArbiter:
        """The arbiter that decides splits of the cluster."""
        return self._shared.cluster_arbiter

    @hookimpl
    async def start(self, context: Context) -> None:
        """Connect and read the counters; does nothing if no service of the plugin is used."""
        parts = self._parts
        if parts is None or not self._serves:
            return
        parts.pipeline.begin()
        await parts.link.open()
        await _check_durability(parts, context)
        if self._joins:
            await parts.leases.join(parts.link.execute)
            self._every(context, "lease", parts.leases.pause_s, self._renew)
        await parts.resync.run(parts.link.execute)
        if self._joins:
            await parts.leases.wait_until_known(parts.link.execute, parts.resync.home_nodes)
        parts.measure(context)
        totals = parts.queues.totals()
        context.log.info(
            "Redis has {sessions} sessions, {retained} retained messages and {messages} queued messages",
            sessions=parts.sessions.count(),
            retained=parts.retained.count(),
            messages=totals.queued + totals.inflight,
        )
        self._every(context, "refresh", parts.settings.refresh_s, self._resync)

    @hookimpl
    def health(self) -> Health:
        """Report whether Redis is up and accepts writes."""
        if self._parts is None or not self._serves:
            return Health(HealthState.HEALTHY)
        link = self._parts.link
        if link.problem is not None:
            return Health(HealthState.FAILED, f"Redis is away: {link.problem}".replace("\n", " "))
        if link.refusal is not None:
            return Health(HealthState.DEGRADED, f"Redis refuses writes: {link.refusal}".replace("\n", " "))
        return Health(HealthState.HEALTHY)

    @hookimpl
    def reload(self, settings: RedisSessionSettings) -> tuple[str, ...]:
        """Take no settings: any change needs a restart."""
        if self._parts is None or settings == self._parts.settings:
            return ()
        return ("plugins.redis_session: a change needs a restart",)

    @hookimpl
    async def stop(self) -> None:
        """Send the waiting writes and close the connections."""
        for timer in self._timers.values():
            timer.cancel()
        parts = self._parts
        if parts is None or not self._serves:
            return
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await parts.pipeline.drained()
        with suppress(ServiceUnavailable):
            await parts.leases.leave(parts.link.execute)
        await parts.reader.close()
        await parts.link.close()

    async def clients(self) -> dict[str, int]:
        """All clients with stored state, with their epochs; for exports."""
        parts = self._shared
        return await parts.resync.epochs(parts.link.execute)

    @property
    def _shared(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the Redis store was requested before it was configured")
        self._serves = True
        return self._parts

    def _spawn(self, answer: Awaitable[Any]) -> None:
        """Run a task in the background."""
        if self._parts is None or self._parts.pipeline.loop is None:
            return
        task = asyncio.ensure_future(answer, loop=self._parts.pipeline.loop)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), ServiceUnavailable | None):
            self._shared.log.error("a background task failed: {error}", error=task.exception())

    def _every(self, context: Context, name: str, interval_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Run ``work`` at each interval, unless Redis is away or the last run is not finished."""

        async def done() -> None:
            try:
                await work()
            finally:
                self._busy.discard(name)

        def due() -> None:
            self._timers[name] = context.clock.later(interval_s, due)
            if self._shared.link.is_up and name not in self._busy:
                self._busy.add(name)
                self._spawn(done())

        self._timers[name] = context.clock.later(interval_s, due)

    async def _renew(self) -> None:
        parts = self._shared
        await parts.renew(parts.execute)

    async def _resync(self) -> None:
        parts = self._shared
        if self._joins:
            # Before the resync, because the resynced counters no longer show what Redis has lost.
            await parts.sessions.check_taken_over(parts.execute)
        await parts.resync.run(parts.execute)
        if self._joins:
            # A node that considered this one gone may have removed new index entries too.
            await parts.sessions.ownership.restore_index(parts.execute)
            await parts.sessions.ownership.sweep(parts.node)


class _Parts:
    """The parts of a configured plugin."""

    def __init__(self, context: Context, settings: RedisSessionSettings) -> None:
        self.settings = settings
        self.log = context.log
        self.node = context.node
        keys = Keys(settings.prefix)
        self.counters = Counters()
        self.resync = Resync(keys, self.counters)
        self.link = Link(
            Servers(settings),
            context.log,
            f"kinmqtt-{context.node.uid:x}",
            timeout_s=settings.timeout_s,
            pauses_s=(settings.reconnect_min_s, settings.reconnect_max_s),
        )
        replicas = settings.wait_replicas if settings.durability == "wait" else 0
        self.cluster_arbiter = RedisClusterArbiter(self.link, keys, replicas, timeout_s=settings.timeout_s)
        now = context.clock.now
        self.pipeline = WritePipeline(
            self.link,
            keys,
            self.counters,
            context.log,
            now=now,
            remember_s=settings.remember_s,
            max_waiting=settings.max_waiting,
            replicas=replicas,
        )
        self.reader = BatchReader(self.link, settings.max_in_flight)
        self.leases = _leases(keys, context, settings)
        self.sessions = RedisSessionStore(
            self.pipeline,
            self.reader,
            self.leases,
            context.log,
            uid=context.node.uid,
            remember_s=settings.remember_s,
            live=settings.when_away == "live",
        )
        self._checks = 0
        """How many more renewals check whether others took over sessions."""
        self.link.on_lost.append(lambda error: self.leases.lost())
        self.link.on_back.append(self._back)
        self.link.on_back.append(lambda: self.sessions.repair(self.link.execute))
        self.link.on_back.append(lambda: self.resync.uncertain(self.link.execute))
        self.queues = RedisQueueStore(self.pipeline, self.reader, context.node.uid)
        self.retained = RedisRetainStore(self.pipeline, self.reader, now=now, remember_s=settings.remember_s)

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Run commands together with other batched reads; raises ServiceUnavailable."""
        return await self.reader.execute(*commands)

    async def renew(self, execute: Execute) -> None:
        """Renew this node's lease."""
        renewed = await self.leases.renew(execute)
        # The renewal was a write, so Redis accepts writes again.
        self.link.refusal = None
        if not renewed:
            await self._after_lapse(execute)
        elif self._checks:
            self._checks -= 1
            await self.sessions.check_taken_over(execute)

    async def _back(self) -> None:
        if self.leases.is_held and not await self.leases.back(self.link.execute):
            await self._after_lapse(self.link.execute)

    async def _after_lapse(self, execute: Execute) -> None:
        """Check for takeovers after this node's lease had expired: others may have considered it gone."""
        self._checks = CHECKS_AFTER_LAPSE
        await self.sessions.check_taken_over(execute)
        await self.sessions.ownership.restore_index(execute)

    def measure(self, context: Context) -> None:
        """Register the metrics."""
        metrics, pipeline = context.metrics, self.pipeline
        pipeline.round_trip = metrics.histogram("redis.round_trip", "seconds", _SECONDS).observe
        pipeline.size = metrics.histogram("redis.batch", "writes", _WRITES).observe
        metrics.gauge("redis.waiting", "writes", lambda: pipeline.waiting)
        metrics.gauge("redis.refused_epochs", "writes", lambda: pipeline.refused)
        metrics.gauge("redis.skipped_retained", "messages", lambda: pipeline.skipped)
        metrics.gauge("redis.local_claims", "clients", lambda: self.sessions.local_claims)
        metrics.gauge("redis.losses", "connections", lambda: self.link.losses)
        metrics.gauge("redis.away", "flag", lambda: int(not self.link.is_up))


def _leases(keys: Keys, context: Context, settings: RedisSessionSettings) -> Leases:
    # A Redis that hangs for less than `timeout_s` does not count as away, so leases must not expire meanwhile.
    lease_s = max(settings.lease_s, 3 * settings.timeout_s)
    # The longest time until other nodes reconnect: an attempt that has just begun, a pause, and a successful attempt.
    reconnect_s = settings.reconnect_max_s + ATTEMPT_TIMEOUTS * settings.timeout_s
    return Leases(keys, context.node, context.clock, context.log, lease_s=lease_s, grace_s=max(lease_s, reconnect_s))


async def _check_durability(parts: _Parts, context: Context) -> None:
    """Raise AssemblyError if Redis's configuration contradicts the durability setting."""
    if parts.settings.durability != "aof":
        return
    try:
        for each in await parts.link.on_each("INFO", "persistence"):
            if not each.get("aof_enabled"):
                raise AssemblyError(
                    'plugins.redis_session.durability is "aof", but Redis has `appendonly no`: set `appendonly yes` '
                    'in redis.conf, or durability = "memory"'
                )
        for each in await parts.link.on_each("CONFIG GET", "appendfsync"):
            if "always" not in (each.values() if isinstance(each, dict) else each):
                context.log.warn(
                    "Redis is not configured with `appendfsync always`: it may acknowledge writes before its "
                    "append-only file has them"
                )
    except UNAVAILABLE as error:
        context.log.warn("can't check whether Redis has an append-only file: {error}", error=error)
