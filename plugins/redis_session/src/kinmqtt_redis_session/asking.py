"""Questions, gathered: all that are put while as many pipelines as may be are on their way go in the next one."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.scripts import Command

AT_ONCE: Final = 1000
"""Commands in one pipeline of questions, as long as one question does not have more."""


class Asker:
    """Puts questions to Redis."""

    def __init__(self, link: Link, max_in_flight: int) -> None:
        self._link = link
        self._most = max_in_flight
        self._waiting: deque[tuple[tuple[Command, ...], asyncio.Future[list[Any]]]] = deque()
        self._under_way: set[asyncio.Task[None]] = set()

    async def ask(self, *commands: Command) -> list[Any]:
        """The answers of commands, which are carried out in order; raises ServiceUnavailable."""
        if not self._link.is_up:
            raise self._link.away()
        if not commands:
            return []
        answer: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
        self._waiting.append((commands, answer))
        self._send()
        return await answer

    @property
    def is_up(self) -> bool:
        """Whether there is anybody to ask."""
        return self._link.is_up

    async def close(self) -> None:
        """Wait for what is on its way."""
        while self._under_way:
            tasks = tuple(self._under_way)
            await asyncio.gather(*tasks, return_exceptions=True)
            # Where all have ended, gather does not yield (from Python 3.12 on), and their callbacks have not run.
            for task in tasks:
                self._done(task)

    def _send(self) -> None:
        while self._waiting and len(self._under_way) < self._most:
            task = asyncio.get_running_loop().create_task(self._sent())
            self._under_way.add(task)
            task.add_done_callback(self._done)
            if len(self._waiting) <= AT_ONCE:
                return  # That task takes all of it, when its turn comes.

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if self._waiting:
            self._send()

    async def _sent(self) -> None:
        taken = []
        commands: list[Command] = []
        while self._waiting and len(commands) < AT_ONCE:
            question = self._waiting.popleft()
            taken.append(question)
            commands += question[0]
        if not commands:
            return
        try:
            answers = await self._link.ask_each(commands)
        except BaseException as error:
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for its, answer in taken:
            some = answers[at : at + len(its)]
            at += len(its)
            if answer.done():
                continue
            # What one question has met is nothing to the others that went with it.
            wrong = next((each for each in some if isinstance(each, Exception)), None)
            if wrong is None:
                answer.set_result(some)
            else:
                answer.set_exception(self._link.refused(wrong))
