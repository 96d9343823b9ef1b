"""The plugin itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final

from kinmqtt_redis_session.asking import Asker
from kinmqtt_redis_session.connection import AWAY, Link
from kinmqtt_redis_session.keys import Keys
from kinmqtt_redis_session.leases import Ask, Leases
from kinmqtt_redis_session.mirror import Mirror
from kinmqtt_redis_session.queues import RedisQueueStore
from kinmqtt_redis_session.refreshing import Refresh
from kinmqtt_redis_session.retained import RedisRetainStore
from kinmqtt_redis_session.scripts import Command
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

ATTEMPT: Final = 5
"""How many times ``timeout_s`` it takes at most, beside the pause, until a broker is back: to close connections, to
make new ones, and to ask."""

LOOKS_BACK: Final = 3
"""How many renewals of a lease that had ended look what others have made of that: those under way are done then."""


class RedisSession:
    """Keeps sessions, queues and retained messages in Redis."""

    def __init__(self, *, joins: bool = True) -> None:
        """``joins`` says that there is a broker that claims sessions, of which others must know whether it lives."""
        self._joins = joins
        self._parts: _Parts | None = None
        self._serves = False
        self._timers: dict[str, Timer] = {}
        self._busy: set[str] = set()
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
        if self._joins:
            await parts.leases.join(parts.link.ask)
            self._each(context, "lease", parts.leases.pause_s, self._renew)
        await parts.refresh.everything(parts.link.ask)
        if self._joins:
            await parts.leases.settled(parts.link.ask, parts.refresh.homes)
        parts.measure(context)
        totals = parts.queues.totals()
        context.log.info(
            "{sessions} sessions, {retained} retained messages and {messages} queued ones are in Redis",
            sessions=parts.sessions.count(),
            retained=parts.retained.count(),
            messages=totals.queued + totals.inflight,
        )
        self._each(context, "refresh", parts.settings.refresh_s, self._refresh)

    @hookimpl
    def health(self) -> Health:
        """Whether Redis is there, and keeps what it is given."""
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
        """Everything is decided at the start."""
        if self._parts is None or settings == self._parts.settings:
            return ()
        return ("plugins.redis_session: a change needs a restart",)

    @hookimpl
    async def stop(self) -> None:
        """Send what is still gathered, and close the connections."""
        for timer in self._timers.values():
            timer.cancel()
        parts = self._parts
        if parts is None or not self._serves:
            return
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await parts.ledger.drained()
        with suppress(ServiceUnavailable):
            await parts.leases.leave(parts.link.ask)
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

    def _each(self, context: Context, name: str, interval_s: float, work: Callable[[], Awaitable[Any]]) -> None:
        """Do something at each interval, unless Redis is away or it is still being done."""

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
        await parts.renew(parts.asked)

    async def _refresh(self) -> None:
        parts = self._shared
        if self._joins:
            # First: what is refreshed does not say any more what was lost.
            await parts.sessions.look_for_taken(parts.asked)
        await parts.refresh.everything(parts.asked)
        if self._joins:
            # Who took this node for gone for a moment may have swept a mark that was put down since.
            await parts.sessions.homes.put_down(parts.asked)
            await parts.sessions.homes.sweep(parts.node)


class _Parts:
    """What a configured plugin is made of."""

    def __init__(self, context: Context, settings: RedisSessionSettings) -> None:
        self.settings = settings
        self.log = context.log
        self.node = context.node
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
            context.log,
            now=now,
            remember_s=settings.remember_s,
            max_waiting=settings.max_waiting,
            replicas=settings.wait_replicas if settings.durability == "wait" else 0,
        )
        self.asker = Asker(self.link, settings.max_in_flight)
        live = settings.when_away == "live"
        # A Redis that stands still for less than `timeout_s` is not seen to be away: leases must not end meanwhile.
        lease_s = max(settings.lease_s, 3 * settings.timeout_s)
        self.leases = Leases(
            keys,
            context.node,
            context.clock,
            context.log,
            lease_s=lease_s,
            # When Redis is back, others come back this much later at most: after one attempt that has just begun, a
            # pause, and one that succeeds.
            grace_s=max(lease_s, settings.reconnect_max_s + ATTEMPT * settings.timeout_s),
        )
        self.sessions = RedisSessionStore(
            self.ledger,
            self.asker,
            self.leases,
            context.log,
            uid=context.node.uid,
            remember_s=settings.remember_s,
            live=live,
        )
        self._looks = 0
        """How often to look again whether others have claimed what was claimed here."""
        self.link.on_lost.append(lambda error: self.leases.lost())
        self.link.on_back.append(self._back)
        self.link.on_back.append(lambda: self.sessions.repair(self.link.ask))
        self.link.on_back.append(lambda: self.refresh.doubtful(self.link.ask))
        self.queues = RedisQueueStore(self.ledger, self.asker, context.node.uid)
        self.retained = RedisRetainStore(self.ledger, self.asker, now=now, remember_s=settings.remember_s)

    async def asked(self, commands: Sequence[Command]) -> list[Any]:
        """What Redis answers, while it is there: with all other questions, on as many connections as there are."""
        return await self.asker.ask(*commands)

    async def renew(self, ask: Ask) -> None:
        """Renew this node's lease."""
        renewed = await self.leases.renew(ask)
        # That was a write: Redis takes them again.
        self.link.refusal = None
        if not renewed:
            await self._was_gone(ask)
        elif self._looks:
            self._looks -= 1
            await self.sessions.look_for_taken(ask)

    async def _back(self) -> None:
        if self.leases.is_held and not await self.leases.back(self.link.ask):
            await self._was_gone(self.link.ask)

    async def _was_gone(self, ask: Ask) -> None:
        """This node's lease had ended: others may have taken it for gone, and some may be about to."""
        self._looks = LOOKS_BACK
        await self.sessions.look_for_taken(ask)
        await self.sessions.homes.put_down(ask)

    def measure(self, context: Context) -> None:
        """Show what goes on."""
        metrics, ledger = context.metrics, self.ledger
        ledger.round_trip = metrics.histogram("redis.round_trip", "seconds", _SECONDS).observe
        ledger.size = metrics.histogram("redis.batch", "writes", _WRITES).observe
        metrics.gauge("redis.waiting", "writes", lambda: ledger.waiting)
        metrics.gauge("redis.refused_epochs", "writes", lambda: ledger.refused)
        metrics.gauge("redis.skipped_retained", "messages", lambda: ledger.skipped)
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
                raise AssemblyError(
                    'plugins.redis_session.durability is "aof", and Redis has `appendonly no`: set `appendonly yes` '
                    'in redis.conf, or durability = "memory"'
                )
        for each in await parts.link.on_each("CONFIG GET", "appendfsync"):
            if "always" not in (each.values() if isinstance(each, dict) else each):
                context.log.warn(
                    "Redis has not `appendfsync always`: what it acknowledges may not be in its append-only file yet"
                )
    except AWAY as error:
        context.log.warn("whether Redis keeps an append-only file can't be asked: {error}", error=error)
