"""``kinmqtt redis export|import``: what Redis holds as lines of JSON, those of ``kinmqtt store``, and back."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, cast

from kinmqtt_redis_session._plugin import RedisSession
from kinmqtt_redis_session.moving import MovingError, lines
from kinmqtt_redis_session.settings import RedisSessionSettings
from kinmqtt_spi.export import Contents, read_export
from kinmqtt_spi.memory.plugin import BareContext
from kinmqtt_spi.services.plugin import Timer
from kinmqtt_spi.services.queue import QueueStore, QueueWrite
from kinmqtt_spi.services.retain import RetainStore
from kinmqtt_spi.services.session import SessionStore
from kinmqtt_spi.services.store import Store
from kinmqtt_spi.settings import Document, parse
from kinmqtt_spi.values import NodeIdentity

AT_ONCE: Final = 2000
"""Writes of one turn of an import."""


class Redis:
    """The command."""

    summary = "exports and imports what the plugin redis_session keeps"

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Declare the arguments."""
        parser.add_argument("action", choices=("export", "import"), help="to standard output, or from standard input")
        parser.add_argument(
            "-c", "--config", type=Path, required=True, help="the broker's settings, with [plugins.redis_session]"
        )

    def run(self, parsed: Namespace) -> int:
        """Run it; for an export the brokers should be stopped, or what it says is of several moments."""
        settings = parse(RedisSessionSettings, Document.read(parsed.config), ("plugins", "redis_session"))
        if parsed.action == "export":
            asyncio.run(_export(settings))
        else:
            contents = read_export(sys.stdin.buffer)
            asyncio.run(_import(settings, contents))
            # Redis stores no events.
            left_out = len(contents.events) + len(contents.consumer_offsets)
            if left_out:
                print(f"kinmqtt: {left_out} lines of events were left out", file=sys.stderr)
        return 0


class _Clock:
    """The time, as it is."""

    def now(self) -> float:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return time.time()

    def monotonic(self) -> float:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return time.monotonic()

    def later(self, delay_s: float, call: Callable[[], object]) -> Timer:
        """See :class:`~kinmqtt_spi.services.plugin.Clock`."""
        return asyncio.get_running_loop().call_later(delay_s, call)


class _Log:
    """Says on standard error what somebody should look at."""

    def debug(self, format: str, **values: object) -> None:
        """Nobody debugs."""

    def info(self, format: str, **values: object) -> None:
        """The command says itself what it has done."""

    def warn(self, format: str, **values: object) -> None:
        """See :class:`~kinmqtt_spi.services.plugin.Log`."""
        print(f"kinmqtt: {format.format(**values)}", file=sys.stderr)

    error = warn


def _context(settings: RedisSessionSettings) -> BareContext:
    """What the plugin is handed without a broker: of two copies at once neither takes the other for itself."""
    context: Any = BareContext("redis_session", settings, node=NodeIdentity("copy", secrets.randbits(63) | 1))
    context.clock, context.log = _Clock(), _Log()
    return cast(BareContext, context)


class _Opened:
    """The plugin without a broker."""

    def __init__(self, settings: RedisSessionSettings) -> None:
        self._plugin = RedisSession(joins=False)
        self._context = _context(settings)
        self._plugin.configure(self._context)
        self.sessions: SessionStore = self._plugin.session_store()
        self.queues: QueueStore = self._plugin.queue_store()
        self.retained: RetainStore = self._plugin.retain_store()

    async def __aenter__(self) -> _Opened:
        try:
            await self._plugin.start(self._context)
        except BaseException:
            await self._plugin.stop()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._plugin.stop()

    async def clients(self) -> dict[str, int]:
        """Everybody of whom anything is held, with their epochs."""
        return await self._plugin.clients()


async def _export(settings: RedisSessionSettings) -> None:
    count = 1
    async with _Opened(settings) as opened:
        clients = await opened.clients()
        async for line in lines(opened.sessions, opened.queues, opened.retained, clients):
            _say(line)
            count += 1
    # Without this line an export that was cut short would pass for a smaller one.
    _say({"kind": "end", "lines": count})


async def _import(settings: RedisSessionSettings, contents: Contents) -> None:
    async with _Opened(settings) as opened:
        if await opened.clients() or opened.retained.count():
            raise MovingError(
                f"Redis holds something below {settings.prefix!r} already: import before a broker has run with that "
                "prefix, or set another one in [plugins.redis_session]"
            )
        for at in range(0, len(contents.sessions), AT_ONCE):
            opened.sessions.apply(contents.sessions[at : at + AT_ONCE])
            await _kept(opened.sessions)
        for some in _bundled(contents.queue_writes()):
            opened.queues.apply(some)
            await _kept(opened.queues)
        for at in range(0, len(contents.retained), AT_ONCE):
            opened.retained.put(contents.retained[at : at + AT_ONCE])
            await _kept(opened.retained)
        totals = opened.queues.totals()
        print(
            f"{opened.sessions.count()} sessions, {opened.retained.count()} retained messages and "
            f"{totals.queued + totals.inflight} queued ones are in Redis"
        )


def _bundled(clients: Iterable[list[QueueWrite]]) -> Iterable[list[QueueWrite]]:
    some: list[QueueWrite] = []
    for writes in clients:
        some += writes
        if len(some) >= AT_ONCE:
            yield some
            some = []
    if some:
        yield some


async def _kept(store: Store) -> None:
    answer = store.commit()
    if answer is not None:
        await answer


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line, separators=(",", ":"), allow_nan=False))


command = Redis()
