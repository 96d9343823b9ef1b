"""Batches reads: requests made while the maximum of pipelines is in flight go together in the next pipeline."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any, Final

from kinmqtt_redis_session.connection import Link
from kinmqtt_redis_session.scripts import Command

MAX_COMMANDS: Final = 1000
"""Commands in one pipeline of reads. A single request with more commands is still sent whole."""


class BatchReader:
    """Sends requests to Redis in batches, at most ``max_in_flight`` pipelines at a time."""

    def __init__(self, link: Link, max_in_flight: int) -> None:
        self._link = link
        self._max_in_flight = max_in_flight
        self._waiting: deque[tuple[tuple[Command, ...], asyncio.Future[list[Any]]]] = deque()
        self._in_flight: set[asyncio.Task[None]] = set()

    async def execute(self, *commands: Command) -> list[Any]:
        """Run commands in order and return their answers; raises ServiceUnavailable."""
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
        """Whether Redis can be reached."""
        return self._link.is_up

    async def close(self) -> None:
        """Wait until no request waits or is in flight."""
        while self._in_flight:
            tasks = tuple(self._in_flight)
            await asyncio.gather(*tasks, return_exceptions=True)
            # From Python 3.12 on, gather does not yield when all tasks are done, so their callbacks have not run.
            for task in tasks:
                self._done(task)

    def _send(self) -> None:
        while self._waiting and len(self._in_flight) < self._max_in_flight:
            task = asyncio.get_running_loop().create_task(self._send_batch())
            self._in_flight.add(task)
            task.add_done_callback(self._done)
            if len(self._waiting) <= MAX_COMMANDS:
                return  # That task takes all waiting requests when it runs.

    def _done(self, task: asyncio.Task[None]) -> None:
        self._in_flight.discard(task)
        if self._waiting:
            self._send()

    async def _send_batch(self) -> None:
        requests = []
        commands: list[Command] = []
        while self._waiting and len(commands) < MAX_COMMANDS:
            request = self._waiting.popleft()
            requests.append(request)
            commands += request[0]
        if not commands:
            return
        try:
            answers = await self._link.execute_each(commands)
        except BaseException as error:
            for _, answer in requests:
                if not answer.done():
                    answer.set_exception(error)
            if not isinstance(error, Exception):
                raise
            return
        at = 0
        for its, answer in requests:
            some = answers[at : at + len(its)]
            at += len(its)
            if answer.done():
                continue
            # An error fails only the request it answers, not the others in the same pipeline.
            problem = next((each for each in some if isinstance(each, Exception)), None)
            if problem is None:
                answer.set_result(some)
            else:
                answer.set_exception(self._link.refused(problem))
