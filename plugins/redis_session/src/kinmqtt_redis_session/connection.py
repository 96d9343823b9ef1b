"""The link to Redis: it detects that Redis is away, and reconnects.

All connections of a link are made and dropped together. When one fails, everything in flight fails, and the link
makes a new set of connections after a growing pause. It first kills the connections of earlier sets: a paused or
cut-off Redis may still have unread commands from them, which must not run after what is sent again.
"""

from __future__ import annotations

import asyncio
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    MaxConnectionsError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
)

from kinmqtt_redis_session.scripts import ALL, Command
from kinmqtt_redis_session.servers import Connections, Servers
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.plugin import Log

UNAVAILABLE: Final = (RedisError, OSError, TimeoutError)
"""Errors that mean that Redis can't be reached or does not answer properly."""

_NOT_THE_MASTER: Final = (ReadOnlyError, ClusterDownError, BusyLoadingError)
"""Answers of a server that is not the master, or not yet. Tested by type: the client library removes the error code
from their text."""

_WRITE_REFUSED: Final = (OutOfMemoryError,)
_WRITE_REFUSED_WORDS: Final = ("OOM ", "MISCONF ", "NOREPLICAS ")
"""Answers of a server that can be reached and refuses all writes."""


class Link:
    """The connections of one plugin."""

    def __init__(
        self,
        servers: Servers,
        log: Log,
        name: str,
        *,
        timeout_s: float,
        pauses_s: tuple[float, float],
        pause: Callable[[float], Awaitable[object]] = asyncio.sleep,
        chance: Callable[[], float] = random.random,
    ) -> None:
        """``name`` identifies this process; ``chance`` spreads the pauses of several brokers."""
        self._servers = servers
        self._log = log
        self._name = name
        self._limit_s = timeout_s
        self._pauses_s = pauses_s
        self._pause = pause
        self._chance = chance
        self._connections: Connections | None = None
        self._generation = 0
        self._task: asyncio.Task[None] | None = None
        self._reported = False
        self.problem: str | None = "not connected yet"
        self.refusal: str | None = None
        """Why a reachable Redis refused the last writes; ``None`` if it did not."""
        self.losses = 0
        self.on_lost: list[Callable[[ServiceUnavailable], object]] = []
        """Called when the connections are lost."""
        self.on_back: list[Callable[[], Awaitable[object]]] = []
        """Awaited after a reconnect, before the link is up again."""

    @property
    def cluster(self) -> bool:
        """Whether Redis is a cluster, where no transaction spans all servers."""
        return self._servers.cluster

    @property
    def is_up(self) -> bool:
        """Whether the link can be used."""
        return self._connections is not None and self.problem is None

    def away(self) -> ServiceUnavailable:
        """The error to raise while Redis is away."""
        return ServiceUnavailable(f"Redis is away: {self.problem}")

    async def open(self) -> None:
        """Connect for the first time; raises ServiceUnavailable."""
        try:
            await self._begin()
        except UNAVAILABLE as error:
            await self._drop()
            raise ServiceUnavailable(f"Redis can't be reached: {_text(error)}") from error
        self.problem = None

    async def close(self) -> None:
        """Close all connections and stop reconnecting."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.problem = "it was stopped"
        await self._drop()

    async def write(self, commands: Sequence[Command], replicas: int = 0) -> list[Any]:
        """Run a pipeline of writes; the answers contain an error for each command that was refused.

        ``replicas`` is how many replicas must have the writes too. Raises ServiceUnavailable if none of the writes
        may count as stored.
        """
        connections = self._current()
        try:
            if not replicas:
                async with asyncio.timeout(self._limit_s):
                    answers = await self._run(connections.write, commands)
            else:
                answers = await self._write_to_replicas(connections, commands, replicas)
        except UNAVAILABLE as error:
            raise self._failed(connections, error) from error
        except Exception as error:
            if self._is_current(connections):
                raise
            raise self.away() from error
        refused = _first_error(answers)
        self.refusal = None if refused is None else _text(refused)
        return answers

    async def execute(self, commands: Sequence[Command]) -> list[Any]:
        """Run a pipeline of reads and independent writes; raises ServiceUnavailable if any command fails."""
        answers = await self.execute_each(commands)
        error = _first_error(answers)
        if error is not None:
            raise self.refused(error) from error
        return answers

    async def execute_each(self, commands: Sequence[Command]) -> list[Any]:
        """Like :meth:`execute`, but return the error of each command that fails in place of its answer."""
        connections = self._current()
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._run(connections.execute, commands)
        except UNAVAILABLE as error:
            raise self._failed(connections, error) from error
        except Exception as error:
            if self._is_current(connections):
                raise
            raise self.away() from error

    def refused(self, error: BaseException) -> ServiceUnavailable:
        """The error to raise when Redis has refused a command."""
        words = _text(error)
        if isinstance(error, _WRITE_REFUSED) or any(each in words for each in _WRITE_REFUSED_WORDS):
            self.refusal = words
        return ServiceUnavailable(f"Redis refused a command: {words}")

    async def on_each(self, *command: str | bytes | int) -> list[Any]:
        """Run a command on every master; returns their answers."""
        return await self._current().on_each(*command)

    async def back(self) -> None:
        """Wait until the link is up again."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _run(self, run: Callable[..., Awaitable[list[Any]]], commands: Sequence[Command]) -> list[Any]:
        answers = await run(commands)
        missing = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            # The script cache was flushed, or another server became the master.
            await self._load()
            again = await run([commands[number] for number in missing])
            for number, answer in zip(missing, again, strict=True):
                answers[number] = answer
        for answer in answers:
            if isinstance(answer, Exception) and _means_unavailable(answer):
                raise answer
        return answers

    async def _write_to_replicas(
        self, connections: Connections, commands: Sequence[Command], replicas: int
    ) -> list[Any]:
        """Write, then WAIT on the same connection: WAIT only covers writes of its own connection."""
        async with asyncio.timeout(self._limit_s):
            *answers, connection = await self._run(connections.write, [*commands, ("CLIENT ID",)])
        async with asyncio.timeout(self._limit_s):
            its, acknowledged = await connections.wait(replicas, int(self._limit_s * 900))
        if its != connection:
            raise RedisError("the connection was lost before replicas had it")
        if acknowledged < replicas:
            raise ServiceUnavailable(f"fewer than {replicas} replicas have it")
        return answers

    def _current(self) -> Connections:
        connections = self._connections
        # The task that reconnects may use the link before it is up.
        if connections is None or (self.problem is not None and asyncio.current_task() is not self._task):
            raise self.away()
        return connections

    def _is_current(self, connections: Connections) -> bool:
        """Whether these connections are the current ones and up.

        Once they are dropped, any error is a consequence of that, whatever its type: if a connection is closed while
        it is being made, redis-py raises an AttributeError because its writer is ``None``.
        """
        return connections is self._connections and self.problem is None

    def _failed(self, connections: Connections, error: BaseException) -> ServiceUnavailable:
        words = _text(error)
        if not _means_unavailable(error):
            self.refusal = words
        elif self._is_current(connections):
            self.problem = words
            self.losses += 1
            if not self._reported:
                self._reported = True
                self._log.error("Redis is away: {problem}", problem=words)
            unavailable = self.away()
            for call in self.on_lost:
                call(unavailable)
            self._task = asyncio.get_running_loop().create_task(self._reconnect())
        return ServiceUnavailable(f"Redis did not carry out the commands: {words}")

    async def _reconnect(self) -> None:
        shortest, longest = self._pauses_s
        pause = shortest
        while True:
            await self._drop()
            # Wait between half of the pause and all of it.
            await self._pause(pause * (1 + self._chance()) / 2)
            pause = min(2 * pause, longest)
            try:
                await self._begin()
                for call in self.on_back:
                    await call()
                self.problem = None
            except (*UNAVAILABLE, ServiceUnavailable) as error:
                self.problem = _text(error)
                continue
            except Exception as error:
                # Retry after any error: giving up here would leave Redis away for good.
                self._log_trace("reconnecting to Redis failed", error)
                self.problem = _text(error)
                continue
            if self._reported:
                self._reported = False
                self._log.info("Redis is back")
            self._task = None
            return

    async def _begin(self) -> None:
        self._generation += 1
        stem = f"{self._name}-"
        current = f"{stem}{self._generation}"
        self._connections = connections = self._servers.connections(current)
        async with asyncio.timeout(3 * self._limit_s):
            await self._load()
            if self._generation > 1:
                await self._kill_earlier(connections, stem, current)

    async def _kill_earlier(self, connections: Connections, stem: str, current: str) -> None:
        try:
            await connections.kill(lambda name: name.startswith(stem) and name != current)
        except NoPermissionError:
            self._log.warn(
                "the Redis user may not call CLIENT LIST and CLIENT KILL: commands sent before Redis went away may "
                "still be carried out"
            )

    async def _load(self) -> None:
        assert self._connections is not None
        for script in ALL:
            await self._connections.on_each("SCRIPT LOAD", script.source)

    async def _drop(self) -> None:
        connections, self._connections = self._connections, None
        if connections is None:
            return
        try:
            async with asyncio.timeout(self._limit_s):
                await connections.close()
        except UNAVAILABLE:
            pass
        except Exception as error:
            self._log_trace("closing the connections to Redis failed", error)

    def _log_trace(self, what: str, error: Exception) -> None:
        self._log.error("{what}:\n{trace}", what=what, trace="".join(traceback.format_exception(error)))


def _means_unavailable(error: BaseException) -> bool:
    """Whether an error means that Redis is away or not the master; else it is an answer to a command."""
    if isinstance(error, MaxConnectionsError):
        return False  # All of our own connections are in use.
    return not isinstance(error, ResponseError) or isinstance(error, _NOT_THE_MASTER) or "UNBLOCKED" in str(error)


def _first_error(answers: Sequence[Any]) -> Exception | None:
    return next((answer for answer in answers if isinstance(answer, Exception)), None)


def _text(error: BaseException) -> str:
    return str(error) or type(error).__name__
