"""The plugin itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, Final

from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.connection import AWAY, Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.mirror import Mirror
from kinmqtt_redis_session.queues import RedisQueueStore
from kinmqtt_redis_session.refreshing import Refresh
from kinmqtt_redis_session.retained import RedisRetainStore
from kinmqtt_redis_session.servers import Servers
from kinmqtt_redis_session.sessions import RedisSessionStore
from kinmqtt_redis_session.settings import RedisSessionSettings, verified
from kinmqtt_redis_session.turn import Ledger
from kinmqtt_spi import hookimpl
from kinmqtt_spi.errors import AssemblyError, ServiceUnavailable
from kinmqtt_spi.services.plugin import Context, Health, HealthState, Requirements, Timer
from kinmqtt_spi.services.queue import QueueStore
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore

_SECONDS: Final = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_WRITES: Final = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 10_000.0)


class RedisSession:
    """Keeps sessions, queues and retained messages in Redis."""

    def __init__(self) -> None:
        self._parts: _Parts | None = None
        self._serves = False
        self._timer: Timer | None = None
        self._tasks: set[asyncio.Future[Any]] = set()

    # Its life

    @hookimpl
    def requirements(self) -> Requirements:
        """Written for version 1 of the SPI; its Redis client is asyncio's."""
        return Requirements(spi_version=1, reactor="asyncio")

    @hookimpl
    def settings_class(self) -> type[RedisSessionSettings]:
        """The section is parsed into this."""
        return RedisSessionSettings

    @hookimpl
    def configure(self, context: Context) -> None:
        """Take the settings; nothing is connected yet."""
        parts = self._parts = _Parts(context, verified(context.settings))
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
    async def start(self, context: Context) -> None:
        """Connect, and read what is held; nothing where no service of it is used."""
        parts = self._parts
        if parts is None or not self._serves:
            return
        parts.ledger.begin()
        await parts.link.open()
        await _look_at_durability(parts, context)
        await parts.refresh.everything(parts.link.ask)
        parts.measure(context)
        totals = parts.queues.totals()
        context.log.info(
            "{sessions} sessions, {retained} retained messages and {messages} queued ones are in Redis",
            sessions=parts.sessions.count(),
            retained=parts.retained.count(),
            messages=totals.queued + totals.inflight,
        )
        self._refresh_later(context)

    @hookimpl
    def health(self) -> Health:
        """Whether Redis is there."""
        if self._parts is None or not self._serves or self._parts.link.problem is None:
            return Health(HealthState.HEALTHY)
        return Health(HealthState.FAILED, f"Redis is away: {self._parts.link.problem}".replace("\n", " "))

    @hookimpl
    def reload(self, settings: RedisSessionSettings) -> tuple[str, ...]:
        """Everything is decided at the start."""
        if self._parts is None or settings == self._parts.settings:
            return ()
        return ("plugins.redis_session: a change needs a restart",)

    @hookimpl
    async def stop(self) -> None:
        """Send what is still gathered, and close the connections."""
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        parts = self._parts
        if parts is None or not self._serves:
            return
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await parts.ledger.drained()
        await parts.asker.close()
        await parts.link.close()

    async def clients(self) -> dict[str, int]:
        """Everybody of whom anything is held, with their epochs: for copies."""
        parts = self._shared
        return await parts.refresh.epochs(parts.link.ask)

    @property
    def _shared(self) -> _Parts:
        if self._parts is None:
            raise RuntimeError("the Redis store was asked for before it was configured")
        self._serves = True
        return self._parts

    def _spawn(self, answer: Awaitable[Any]) -> None:
        """See to what nobody waits for."""
        if self._parts is None or self._parts.ledger.loop is None:
            return
        task = asyncio.ensure_future(answer, loop=self._parts.ledger.loop)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Future[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and not isinstance(task.exception(), ServiceUnavailable | None):
            self._shared.log.error("something went wrong behind the scenes: {error}", error=task.exception())

    def _refresh_later(self, context: Context) -> None:
        self._timer = context.clock.later(self._shared.settings.refresh_s, lambda: self._refresh(context))

    def _refresh(self, context: Context) -> None:
        self._refresh_later(context)
        parts = self._shared
        if parts.link.is_up and not self._tasks:
            self._spawn(parts.refresh.everything(parts.link.ask))


class _Parts:
    """What a configured plugin is made of."""

    def __init__(self, context: Context, settings: RedisSessionSettings) -> None:
        self.settings = settings
        self.log = context.log
        keys = Keys(settings.prefix)
        self.mirror = Mirror()
        self.refresh = Refresh(keys, self.mirror)
        self.link = Link(
            Servers(settings),
            context.log,
            f"kinmqtt-{context.node.uid:x}",
            timeout_s=settings.timeout_s,
            pauses_s=(settings.reconnect_min_s, settings.reconnect_max_s),
        )
        now = context.clock.now
        self.ledger = Ledger(
            self.link,
            keys,
            self.mirror,
            now=now,
            remember_s=settings.remember_s,
            max_waiting=settings.max_waiting,
            replicas=settings.wait_replicas if settings.durability == "wait" else 0,
        )
        self.asker = Asker(self.link, settings.max_in_flight)
        live = settings.when_away == "live"
        self.sessions = RedisSessionStore(self.ledger, self.asker, remember_s=settings.remember_s, live=live)
        self.link.on_back.append(lambda: self.sessions.repair(self.link.ask))
        self.link.on_back.append(lambda: self.refresh.doubtful(self.link.ask))
        self.queues = RedisQueueStore(self.ledger, self.asker, context.node.uid)
        self.retained = RedisRetainStore(self.ledger, self.asker, now=now, remember_s=settings.remember_s)

    def measure(self, context: Context) -> None:
        """Show what goes on."""
        metrics, ledger = context.metrics, self.ledger
        ledger.round_trip = metrics.histogram("redis.round_trip", "seconds", _SECONDS).observe
        ledger.size = metrics.histogram("redis.batch", "writes", _WRITES).observe
        metrics.gauge("redis.waiting", "writes", lambda: ledger.waiting)
        metrics.gauge("redis.refused_epochs", "writes", lambda: ledger.refused)
        metrics.gauge("redis.local_claims", "clients", lambda: self.sessions.local_claims)
        metrics.gauge("redis.losses", "connections", lambda: self.link.losses)
        metrics.gauge("redis.away", "flag", lambda: int(not self.link.is_up))


async def _look_at_durability(parts: _Parts, context: Context) -> None:
    """Refuse to promise what Redis is not set up for."""
    if parts.settings.durability != "aof":
        return
    try:
        for each in await parts.link.on_each("INFO", "persistence"):
            if not each.get("aof_enabled"):
                raise AssemblyError('plugins.redis_session.durability is "aof", and Redis has `appendonly no`')
        for each in await parts.link.on_each("CONFIG GET", "appendfsync"):
            if "always" not in (each.values() if isinstance(each, dict) else each):
                context.log.warn(
                    "Redis has not `appendfsync always`: what it acknowledges may not be in its append-only file yet"
                )
    except AWAY as error:
        context.log.warn("whether Redis keeps an append-only file can't be asked: {error}", error=error)
