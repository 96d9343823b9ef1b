"""The way to Redis: up or away, and back again.

Connections live and fail together. When one fails, all that was on its way is told as failed, and a new life begins
after a growing pause. It first ends the connections of the lives before: Redis, paused or cut off, may still have
commands of theirs to read, and they must not be carried out behind what is sent again.
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
from kinmqtt_redis_session.servers import Life, Servers
from kinmqtt_spi.errors import ServiceUnavailable
from kinmqtt_spi.services.plugin import Log

AWAY: Final = (RedisError, OSError, TimeoutError)
"""What says that Redis can't be reached or does not answer as it should."""

_NOT_THE_MASTER: Final = (ReadOnlyError, ClusterDownError, BusyLoadingError)
"""Answers of a server that is not the one to write to, or not yet. Their text says nothing: the client takes the code
off it."""

_KEEPS_NOTHING: Final = (OutOfMemoryError,)
_KEEPS_NOTHING_WORDS: Final = ("OOM ", "MISCONF ", "NOREPLICAS ")
"""Answers of a server that is there, and keeps nothing for anybody."""


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
        """``name`` is this process's; ``chance`` spreads the pauses, so that many brokers don't come at once."""
        self._servers = servers
        self._log = log
        self._name = name
        self._limit_s = timeout_s
        self._pauses_s = pauses_s
        self._pause = pause
        self._chance = chance
        self._life: Life | None = None
        self._lives = 0
        self._task: asyncio.Task[None] | None = None
        self._told = False
        self.problem: str | None = "not connected yet"
        self.refusal: str | None = None
        """Why the last writes were refused by a Redis that is there."""
        self.losses = 0
        self.on_lost: list[Callable[[ServiceUnavailable], object]] = []
        """Told when a life has ended."""
        self.on_back: list[Callable[[], Awaitable[object]]] = []
        """Waited for before anybody is served again."""

    @property
    def cluster(self) -> bool:
        """Whether there are several servers, and no transaction over all of them."""
        return self._servers.cluster

    @property
    def is_up(self) -> bool:
        """Whether it is served."""
        return self._life is not None and self.problem is None

    def away(self) -> ServiceUnavailable:
        """What is raised while Redis is away."""
        return ServiceUnavailable(f"Redis is away: {self.problem}")

    async def open(self) -> None:
        """Connect for the first time; raises ServiceUnavailable."""
        try:
            await self._begin()
        except AWAY as error:
            await self._drop()
            raise ServiceUnavailable(f"Redis can't be reached: {_words(error)}") from error
        self.problem = None

    async def close(self) -> None:
        """Close all connections, and try no more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        self.problem = "it was stopped"
        await self._drop()

    async def write(self, commands: Sequence[Command], replicas: int = 0) -> list[Any]:
        """The answers of a pipeline of writes, errors among them where single ones were refused.

        ``replicas`` is how many must have them as well. Raises ServiceUnavailable where none may count as kept.
        """
        life = self._served()
        try:
            if not replicas:
                async with asyncio.timeout(self._limit_s):
                    answers = await self._carried_out(life.write, commands)
            else:
                answers = await self._kept_by(life, commands, replicas)
        except AWAY as error:
            raise self._failed(life, error) from error
        except Exception as error:
            if self._serves(life):
                raise
            raise self.away() from error
        refused = _first_error(answers)
        self.refusal = None if refused is None else _words(refused)
        return answers

    async def ask(self, commands: Sequence[Command]) -> list[Any]:
        """The answers of a pipeline of reads, and of writes that stand for themselves; raises ServiceUnavailable."""
        answers = await self.ask_each(commands)
        error = _first_error(answers)
        if error is not None:
            raise self.refused(error) from error
        return answers

    async def ask_each(self, commands: Sequence[Command]) -> list[Any]:
        """The same, with an error in the place of each answer that is one."""
        life = self._served()
        try:
            async with asyncio.timeout(self._limit_s):
                return await self._carried_out(life.ask, commands)
        except AWAY as error:
            raise self._failed(life, error) from error
        except Exception as error:
            if self._serves(life):
                raise
            raise self.away() from error

    def refused(self, error: BaseException) -> ServiceUnavailable:
        """What is raised for an error that Redis has answered to one command."""
        words = _words(error)
        if isinstance(error, _KEEPS_NOTHING) or any(each in words for each in _KEEPS_NOTHING_WORDS):
            self.refusal = words
        return ServiceUnavailable(f"Redis did not keep or answer it: {words}")

    async def on_each(self, *command: str | bytes | int) -> list[Any]:
        """The answers of every server that takes writes."""
        return await self._served().on_each(*command)

    async def back(self) -> None:
        """Wait until it is served again."""
        if self._task is not None:
            await asyncio.shield(self._task)

    async def _carried_out(self, run: Callable[..., Awaitable[list[Any]]], commands: Sequence[Command]) -> list[Any]:
        answers = await run(commands)
        missing = [number for number, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
        if missing:
            # Somebody emptied Redis's cache of scripts, or another server has become the one to write to.
            await self._load()
            again = await run([commands[number] for number in missing])
            for number, answer in zip(missing, again, strict=True):
                answers[number] = answer
        for answer in answers:
            if isinstance(answer, Exception) and _says_away(answer):
                raise answer
        return answers

    async def _kept_by(self, life: Life, commands: Sequence[Command], replicas: int) -> list[Any]:
        """What is written is waited for on the same connection: of another one's writes WAIT knows nothing."""
        async with asyncio.timeout(self._limit_s):
            *answers, connection = await self._carried_out(life.write, [*commands, ("CLIENT ID",)])
        async with asyncio.timeout(self._limit_s):
            its, acknowledged = await life.wait(replicas, int(self._limit_s * 900))
        if its != connection:
            raise RedisError("the connection was lost before replicas had it")
        if acknowledged < replicas:
            raise ServiceUnavailable(f"fewer than {replicas} replicas have it")
        return answers

    def _served(self) -> Life:
        life = self._life
        # Who brings it back may ask before others.
        if life is None or (self.problem is not None and asyncio.current_task() is not self._task):
            raise self.away()
        return life

    def _serves(self, life: Life) -> bool:
        """Whether a life goes on.

        What fails once it has ended fails for that, whatever it says: where a connection is closed while it is being
        made, redis-py meets a writer that is ``None``.
        """
        return life is self._life and self.problem is None

    def _failed(self, life: Life, error: BaseException) -> ServiceUnavailable:
        words = _words(error)
        if not _says_away(error):
            self.refusal = words
        elif self._serves(life):
            self.problem = words
            self.losses += 1
            if not self._told:
                self._told = True
                self._log.error("Redis is away: {problem}", problem=words)
            told = self.away()
            for call in self.on_lost:
                call(told)
            self._task = asyncio.get_running_loop().create_task(self._come_back())
        return ServiceUnavailable(f"Redis did not keep or answer it: {words}")

    async def _come_back(self) -> None:
        shortest, longest = self._pauses_s
        pause = shortest
        while True:
            await self._drop()
            # Between half and all of the pause.
            await self._pause(pause * (1 + self._chance()) / 2)
            pause = min(2 * pause, longest)
            try:
                await self._begin()
                for call in self.on_back:
                    await call()
                self.problem = None
            except (*AWAY, ServiceUnavailable) as error:
                self.problem = _words(error)
                continue
            except Exception as error:
                # Whatever it was: who gives up here is away for good.
                self._log_trace("something went wrong on the way back to Redis", error)
                self.problem = _words(error)
                continue
            if self._told:
                self._told = False
                self._log.info("Redis is back")
            self._task = None
            return

    async def _begin(self) -> None:
        self._lives += 1
        stem = f"{self._name}-"
        current = f"{stem}{self._lives}"
        self._life = life = self._servers.life(current)
        async with asyncio.timeout(3 * self._limit_s):
            await self._load()
            if self._lives > 1:
                await self._end_earlier(life, stem, current)

    async def _end_earlier(self, life: Life, stem: str, current: str) -> None:
        try:
            await life.kill(lambda name: name.startswith(stem) and name != current)
        except NoPermissionError:
            self._log.warn(
                "the Redis user may not call CLIENT LIST and CLIENT KILL: what was sent before Redis went away may "
                "still be carried out"
            )

    async def _load(self) -> None:
        assert self._life is not None
        for script in ALL:
            await self._life.on_each("SCRIPT LOAD", script.source)

    async def _drop(self) -> None:
        life, self._life = self._life, None
        if life is None:
            return
        try:
            async with asyncio.timeout(self._limit_s):
                await life.close()
        except AWAY:
            pass
        except Exception as error:
            self._log_trace("connections to Redis could not be closed", error)

    def _log_trace(self, what: str, error: Exception) -> None:
        self._log.error("{what}:\n{trace}", what=what, trace="".join(traceback.format_exception(error)))


def _says_away(error: BaseException) -> bool:
    """Whether an error says that Redis is not there, or not the one to ask; else it has answered."""
    if isinstance(error, MaxConnectionsError):
        return False  # It is our own connections that are all in use.
    return not isinstance(error, ResponseError) or isinstance(error, _NOT_THE_MASTER) or "UNBLOCKED" in str(error)


def _first_error(answers: Sequence[Any]) -> Exception | None:
    return next((answer for answer in answers if isinstance(answer, Exception)), None)


def _words(error: BaseException) -> str:
    return str(error) or type(error).__name__
